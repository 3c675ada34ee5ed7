"""File formats: CSV, NDJSON and XLSX, plain or compressed."""

from effects_reports.formats.opening import open_format

__all__ = ["open_format"]
