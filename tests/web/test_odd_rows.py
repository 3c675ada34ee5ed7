"""Goal: a row that cannot be read is shown as such, and hides no other; on every list command, page and export.

Method: a full shop, in which each table gets copies of a row with one odd value; what the constraints let pass stays.
The commands come from the command tree, the pages from the routes and from the links of those that were shown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from html import unescape
from typing import Any

import pytest
from sqlalchemy import (
    Boolean,
    Column,
    Connection,
    Double,
    Integer,
    LargeBinary,
    Table,
    UniqueConstraint,
    text,
)
from sqlalchemy.exc import DBAPIError

from effects import Effects
from effects.store.schema.columns import UtcTime
from effects.web import Dashboard, Person, dashboard
from effects.web.application import build_routes
from effects.web.pages import installed_pages
from tests.cli.conftest import effects
from tests.support.commands import ACTING, COMMANDS, READING
from tests.support.odd_rows import literals
from tests.support.sampling import is_full, sample
from tests.web.browsing import Visitor
from tests.web.full_shop import KEY, TEMPLATES, FullShop

ROUND = 500  # cases in one round, of which a database takes an eighth: a page shows those of its table
LITERAL_MAX = 5_000
DETAILS, SHOWN = 60, 8  # pages of one thing, and things that each `show` is asked for
LISTED_BY = {
    "job_id": "dead list", "bulk_id": "bulk list", "run_id": "reports list", "endpoint_id": "webhooks endpoints list",
    "key": "limits list", "name": "email list",
}  # fmt: skip
SHOWING = ("show", "why", "secrets list")


def cases(table: Table, *, postgresql: bool) -> list[tuple[Column[Any], str]]:
    """Odd values of each column's own kind: a number in a column of numbers, though SQLite would take anything."""
    every = [(column, literal) for column in table.columns for literal in literals(column, postgresql=postgresql)]
    return [pair for pair in every if len(pair[1]) <= LITERAL_MAX and (postgresql or _is_of_kind(*pair))]


def _is_of_kind(column: Column[Any], literal: str) -> bool:
    if literal == "NULL":
        return True
    if isinstance(column.type, UtcTime | Double):
        return re.fullmatch(r"-?[0-9.e]+", literal) is not None
    if isinstance(column.type, Boolean):
        return literal in ("0", "1")
    if isinstance(column.type, Integer):
        return re.fullmatch(r"-?[0-9]+", literal) is not None
    return literal.startswith("x'" if isinstance(column.type, LargeBinary) else "'")


def plant(app: Effects, chosen: int, rounds: int) -> int:
    """Write the odd rows of one round; how many were taken."""
    planted = 0
    for number, (table, column, literal) in enumerate(every_case(app)[chosen::rounds]):
        with suppress(DBAPIError), app.engine.begin() as connection:
            planted += _copy(connection, table, column, literal, number)
    return planted


def every_case(app: Effects) -> list[tuple[Table, Column[Any], str]]:
    postgresql = app.store.is_postgresql
    return [(table, *case) for table in app.store.tables.values() for case in cases(table, postgresql=postgresql)]


def _copy(connection: Connection, table: Table, odd: Column[Any], literal: str, number: int) -> int:
    """A copy of a row, with one odd value, and other keys."""
    unique = {column.name for column in table.primary_key}
    for constraint in table.constraints:
        unique |= {column.name for column in constraint.columns} if isinstance(constraint, UniqueConstraint) else set()
    for index in table.indexes:
        unique |= {column.name for column in index.columns} if index.unique else set()
    values = {column.name: _other_key(table, column, number) if column.name in unique else column.name
              for column in table.columns} | {odd.name: literal}  # fmt: skip
    names = ", ".join(f'"{name}"' for name in values)
    statement = (
        f"INSERT INTO {table.fullname} ({names}) SELECT {', '.join(values.values())} FROM {table.fullname} LIMIT 1"
    )
    return connection.execute(text(statement.replace(":", "\\:"))).rowcount


def _other_key(table: Table, column: Column[Any], number: int) -> str:
    if isinstance(column.type, Integer):
        return f"(SELECT COALESCE(max({column.name}), 0) + 1 FROM {table.fullname})"
    return f"{column.name} || '-{number}'" if column.type.python_type is str else column.name


@pytest.fixture
def visitor(full: FullShop) -> Iterator[Visitor]:
    board: Dashboard = dashboard(guard=lambda request: Person("ann", role="admin", personal=True), effects=full.app)
    yield Visitor(board)
    board.close()


def run(app: Effects, broken: list[str], *arguments: str) -> str:
    """What a command prints; `broken` has those that end in an error."""
    answer = effects("--database-url", app.engine.url.render_as_string(hide_password=False), *arguments)
    if answer.err and (answer.exit_code not in (0, 1) or "error:" in answer.err):
        broken.append(f"{' '.join(arguments)}: {answer.err}")
    return answer.out


def rows_of(printed: str) -> list[Any]:
    document = json.loads(printed or "[]")
    return document if isinstance(document, list) else []


def names_of(rows: list[Any]) -> set[str]:
    """What each row is called: its first field."""
    return {str(next(iter(row.values()))) for row in rows if isinstance(row, dict) and row}


def lists(app: Effects, broken: list[str]) -> dict[str, set[str]]:
    """The rows of every command that needs no argument, by what they are called."""
    shown = {}
    for name in READING:
        if name in ACTING:
            continue
        has_limit = any("--limit" in each.opts for each in COMMANDS[name].params)
        options = ["--limit", "10000"] if has_limit else []
        run(app, broken, *name.split(), *options)
        printed = run(app, broken, *name.split(), *options, "--json")
        shown[name] = names_of(rows_of(printed)) if has_limit else set()
    run(app, broken, "metrics")
    return shown


@pytest.mark.slow
def test_no_odd_row_breaks_or_empties_a_screen(
    full: FullShop, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EFFECTS_KEYS", f"k={KEY}")
    monkeypatch.setenv("EFFECTS_EMAIL_TEMPLATES", str(TEMPLATES))
    app, broken = full.app, list[str]()
    assert set(READING) >= ACTING  # each of them is still there
    before, pages = (
        lists(app, broken),
        [route for route in build_routes(None, installed_pages()) if "GET" in route.methods],
    )
    rounds = -(-len(every_case(app)) // ROUND)
    for chosen in sample(range(rounds), 1):
        assert plant(app, chosen, rounds) > len(app.store.tables) / 2
        after = lists(app, broken)
        show_each(app, after, broken)
        visit_each(visitor, [route.pattern for route in pages if "{" not in route.pattern], broken)
        assert broken == []
        assert {name: gone for name, rows in before.items() if (gone := rows - after[name])} == {}


def show_each(app: Effects, listed: dict[str, set[str]], broken: list[str]) -> None:
    """Everything that is listed may be asked about; what is gone, or no name that a command takes, is said so."""
    for name, command in COMMANDS.items():
        required = [each.name for each in command.params if each.required]
        if len(required) == 1 and required[0] in LISTED_BY and name.endswith(SHOWING):
            for row in sample(sorted(listed[LISTED_BY[required[0]]]), SHOWN):
                errors = list[str]()
                run(app, errors, *name.split(), "--", row)
                broken += [error for error in errors if "Error at " in error]


def visit_each(visitor: Visitor, patterns: list[str], broken: list[str]) -> None:
    """The pages without a parameter, and those that they lead to."""
    links: set[str] = set()
    for path in patterns:
        answer = visitor.get(path)
        broken += [f"{path}: {answer.text[:300]}"] if answer.status_code >= 500 else []
        links |= {unescape(link).partition("#")[0] for link in re.findall(r'href="(/[^"]*)"', answer.text)}
    details = sorted(link for link in links if "/-/" not in link and link.partition("?")[0] not in patterns)
    assert len(details) > 50
    for link in details if is_full() else sample(details, DETAILS):
        answer = visitor.get(link)
        broken += [f"{link}: {answer.text[:300]}"] if answer.status_code >= 500 else []
