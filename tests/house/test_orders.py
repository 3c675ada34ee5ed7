"""No statement orders rows by a time alone: a clock of milliseconds repeats itself, and ties come in any order."""

from __future__ import annotations

import re
from pathlib import Path

from sqlalchemy import MetaData

from effects import Effects
from effects.store.schema.columns import UtcTime

ROOT = Path(__file__).parents[2]
PACKAGES = ("effects", "email", "webhooks", "reports")
_ORDER = re.compile(r"ORDER BY ((?:\{[^}]*\}|[^\n\"'{;)])+?)(?= LIMIT|\n|\"|'|;|\)| \{sql)")


def time_columns(folder: Path) -> set[str]:
    """The names of all columns that hold times, and of what is computed of them."""
    app = Effects(f"sqlite:///{folder / 'any.db'}")
    metadata: MetaData = next(iter(app.store.tables.values())).metadata
    app.dispose()
    columns = {column.name for table in metadata.tables.values() for column in table.columns}
    times = {
        column.name
        for table in metadata.tables.values()
        for column in table.columns
        if isinstance(column.type, UtcTime)
    }
    assert {"created_at", "run_at", "finished_at"} <= times < columns
    return times | {"seconds", "silent", "age"}


def last_terms() -> list[tuple[str, str]]:
    """Where each ORDER BY of the packages stands, and the column that decides last."""
    terms = []
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            for order in _ORDER.findall(file.read_text()):
                last = order.split(",")[-1].split()[0]
                terms.append((f"{file.relative_to(ROOT)}: ORDER BY {order}", last.rpartition(".")[2]))
    return terms


def test_no_order_ends_with_a_time(tmp_path: Path) -> None:
    times, terms = time_columns(tmp_path), last_terms()
    assert len(terms) > 60
    assert [place for place, last in terms if last in times] == []
