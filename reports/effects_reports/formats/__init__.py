"""File formats: CSV, NDJSON and XLSX, plain or compressed."""
