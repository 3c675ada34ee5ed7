"""No models: our tables are Alembic's. Django emits `post_migrate` for apps that have this module only."""
