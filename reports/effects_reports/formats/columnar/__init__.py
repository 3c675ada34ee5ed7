"""Parquet and Arrow: files of typed columns, by pyarrow (the extra `parquet`)."""
