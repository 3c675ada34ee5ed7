"""The tables of effects and its packages, by the operation that brings them up to date."""

from __future__ import annotations

from typing import Any

from django.apps import apps
from django.db import migrations
from django.db.migrations.operations.base import Operation


class UpgradeEffectsTables(Operation):
    """Bring the tables of effects to the installed version, in the transaction of Django's migration.

    What the database already has, by `effects init`, stays. It cannot be reversed: the rows are records of what was
    sent. In databases other than EFFECTS's it does nothing.
    """

    reduces_to_sql = False
    reversible = False

    def state_forwards(self, app_label: str, state: Any) -> None:
        """No models: `makemigrations` has nothing to compare."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        config = apps.get_app_config("effects")
        if schema_editor.connection.alias != config.alias:
            return
        from effects.store.db import revisions  # noqa: PLC0415 - Alembic takes a while to import
        from effects.store.migrations import migrate  # noqa: PLC0415

        with config.app.writing(schema_editor.connection) as connection:
            migrate.upgrade(connection, config.app.store.located, revisions.newest())

    def describe(self) -> str:
        """As `migrate --plan` shows it."""
        return "Create or migrate the tables of effects"


class Migration(migrations.Migration):
    """Runs our Alembic revisions."""

    initial = True
    dependencies = ()
    operations = (UpgradeEffectsTables(),)
