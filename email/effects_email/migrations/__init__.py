"""Alembic revisions of the webhook tables."""
