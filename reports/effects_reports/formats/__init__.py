"""File formats: CSV and NDJSON, plain or compressed, XLSX, Parquet and Arrow."""

from effects_reports.formats.opening import open_format

__all__ = ["open_format"]
