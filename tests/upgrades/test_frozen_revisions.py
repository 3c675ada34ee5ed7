"""What a released revision makes never changes: `frozen/` has it, for both databases. A change is a new revision.

`EFFECTS_TEST_FREEZE=1` writes the files of revisions that have none yet, at their release.
"""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path

import pytest
import sqlalchemy as sa

from effects import Effects
from effects.store.db import revisions
from effects.store.migrations import migrate

FROZEN = Path(__file__).parent / "frozen"
RELEASED = ("core_0001", "email_0001", "reports_0001", "webhooks_0001")  # with version 0.2

_POSTGRESQL = """
    SELECT 'column ' || c.relname || '.' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod)
        || CASE WHEN a.attnotnull THEN ' NOT NULL' ELSE '' END
        || CASE WHEN a.attidentity <> '' THEN ' IDENTITY' ELSE '' END
        || COALESCE(' DEFAULT ' || pg_get_expr(d.adbin, d.adrelid), '')
    FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid LEFT JOIN pg_attrdef AS d
        ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT 'constraint ' || conrelid::regclass || ' ' || conname || ' ' || pg_get_constraintdef(oid) FROM pg_constraint
    WHERE connamespace = 'public'::regnamespace AND contype IN ('p', 'u', 'c', 'f', 'x')
    UNION ALL
    SELECT 'index ' || pg_get_indexdef(i.indexrelid) FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
    WHERE c.relnamespace = 'public'::regnamespace
    UNION ALL
    SELECT 'storage ' || relname || ' ' || array_to_string(reloptions, ' ') FROM pg_class
    WHERE relnamespace = 'public'::regnamespace AND reloptions IS NOT NULL
    UNION ALL
    SELECT 'view ' || viewname || ' ' || definition FROM pg_views WHERE schemaname = 'public'
    UNION ALL
    SELECT 'function ' || pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'public'::regnamespace
    UNION ALL
    SELECT 'trigger ' || pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal
    UNION ALL
    SELECT 'sequence ' || sequencename || ' ' || data_type || ' ' || increment_by FROM pg_sequences
    WHERE schemaname = 'public'"""
_SQLITE = "SELECT type || ' ' || name || ' ' || sql FROM sqlite_master WHERE sql IS NOT NULL"


def _described(app: Effects) -> list[str]:
    """One line for each thing, whatever order they were made in."""
    statement = _POSTGRESQL if app.store.is_postgresql else _SQLITE
    with app.store.read() as connection:
        lines = [
            re.sub(r"\s+", " ", line).strip() for line in connection.scalars(sa.text(statement.replace("::", r"\:\:")))
        ]
    return sorted(line for line in lines if revisions.VERSION_TABLE not in line)


@pytest.mark.parametrize("revision", sorted(revisions.all_names()))
def test_a_released_revision_makes_what_it_made(revision: str, empty_database_url: str) -> None:
    app = Effects(empty_database_url)
    with app.store.begin() as connection:
        assert revision in migrate.upgrade(connection, None, [revision])
    lines = _described(app)
    file = FROZEN / f"{revision}.{app.engine.dialect.name}.txt"
    app.dispose()
    if not file.exists() and os.environ.get("EFFECTS_TEST_FREEZE"):
        file.write_text("".join(f"{line}\n" for line in lines))
    if not file.exists():
        assert revision not in RELEASED
        return
    frozen = file.read_text().splitlines()
    changed = "\n".join(difflib.unified_diff(frozen, lines, "released", "this tree", n=0, lineterm=""))
    assert lines == frozen, f"{revision} is released; write a new revision instead:\n{changed}"


def test_every_released_revision_is_frozen_on_both_databases() -> None:
    files = {path.name for path in FROZEN.iterdir()}
    assert {f"{revision}.{database}.txt" for revision in RELEASED for database in ("postgresql", "sqlite")} <= files


def test_every_later_revision_says_which_code_works_with_it() -> None:
    for folder in revisions.folders():
        for path in folder.glob("*_[0-9]*.py"):
            first = path.stem.endswith("_0001")
            assert first or re.search(r"^oldest_code = ", path.read_text(), re.MULTILINE), path
