"""How Alembic runs here: on the connection and in the transaction that `effects.store.db.migrate` gives."""

from alembic import context

attributes = context.config.attributes
context.configure(
    connection=attributes["connection"],
    version_table=attributes["version_table"],
    version_table_schema=attributes["version_table_schema"],
    render_as_batch=True,
)
context.run_migrations()
