"""File formats: CSV and NDJSON, plain or compressed, XLSX, Parquet and Arrow."""
