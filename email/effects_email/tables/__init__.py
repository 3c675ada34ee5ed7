"""The tables of email, and the only modules of this package that write SQL."""

from effects_email.tables.schema import build_tables

__all__ = ["build_tables"]
