"""The tables of reports, and the only modules of this package that write SQL."""

from effects_reports.tables.schema import build_tables

__all__ = ["build_tables"]
