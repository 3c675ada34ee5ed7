"""For apps with an Alembic history of their own.

In `env.py`, autogenerate leaves the tables of effects alone:

    from effects.alembic import include_name

    context.configure(connection=connection, target_metadata=metadata, include_name=include_name)

A revision of the app may create and migrate them, instead of `effects init`:

    def upgrade() -> None:
        effects.alembic.upgrade(op, to=["core_0001", "email_0001", "reports_0001", "webhooks_0001"])

    def downgrade() -> None:
        pass  # effects has no downgrade: its tables stay
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from effects.errors import ConfigurationError
from effects.store.db import revisions

if TYPE_CHECKING:
    from alembic.migration import MigrationContext

TABLE_PREFIX = "effects_"


class HasContext(Protocol):
    """`alembic.op`, or an `Operations`."""

    def get_context(self) -> MigrationContext: ...


def include_name(name: str | None, type_: str, parent_names: Mapping[Any, Any]) -> bool:
    """Tell autogenerate to ignore the tables of effects, in whatever schema they are: all that begin with `effects_`.

    Together with your own rule: `effects.alembic.include_name(name, type_, parents) and own_rule(…)`.
    """
    return type_ != "table" or name is None or not name.startswith(TABLE_PREFIX)


def newest_revisions() -> list[str]:
    """List the newest revision of each installed package: what `upgrade` is given in a new revision of the app."""
    return sorted(revisions.newest())


def upgrade(op: HasContext, *, to: Iterable[str], schema: str | None = None) -> None:
    """Create the tables of effects, or migrate them, within the app's own revision and transaction.

    What the database already has, by `effects init` or an earlier revision, stays. A rollback takes all of it back, on
    SQLite too, where the transaction begins here at the latest.

    Args:
        op: `alembic.op`.
        to: pinned revisions, one for each package, from `newest_revisions()` at the time of writing: the app's history
            then means the same with every later version of effects.
        schema: as EFFECTS_SCHEMA, on PostgreSQL. Default: the first of the connection's search path.

    Raises:
        ConfigurationError: a revision is not known, or there is no database (`alembic upgrade --sql`).
        SchemaMismatch: a newer version of effects migrated it; unchanged.
    """
    names = _checked(to)
    context = op.get_context()
    if context.as_sql or context.connection is None:
        raise ConfigurationError(
            "effects.alembic.upgrade needs the database: it applies what is missing, which --sql cannot know. Leave it "
            "out of the script, and run `effects init` there"
        )
    from effects.store.migrations import migrate  # noqa: PLC0415 - for those who only need `include_name`

    migrate.upgrade(context.connection, schema, names)


def _checked(to: Iterable[str]) -> list[str]:
    names = [] if isinstance(to, str) else list(to)
    newest = newest_revisions()
    if not names:
        raise ConfigurationError(f"effects.alembic.upgrade: to must be a list of revisions; today's are {newest}")
    if unknown := sorted(set(names) - revisions.all_names()):
        raise ConfigurationError(
            f"effects.alembic.upgrade: revision {', '.join(unknown)} is not known to this version; today's are {newest}"
        )
    return names
