"""Alembic revisions of the report tables."""
