"""Alembic revisions of the core's tables."""
