"""The tables of webhooks, and the only modules of this package that write SQL."""

from effects_webhooks.tables.schema import build_tables

__all__ = ["build_tables"]
