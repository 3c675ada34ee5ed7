"""A SELECT that the database does not take: the run fails at once, and says why without a value."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from effects import JobType
from effects_reports import explain_report, report, report_status, request_report
from tests.reports.conftest import Shop, content, drain
from tests.reports.shop import csv_rows, fill, orders
from tests.support.manual_workers import rows


@report("typo", consistency="single", columns=("colour",))
def typo(params: dict[str, Any]) -> sa.Select[Any]:
    return sa.select(sa.literal_column("colour").label("colour")).select_from(sa.text("effects_jobs"))


@report("nowhere", consistency="single", columns=("colour",))
def nowhere(params: dict[str, Any]) -> sa.Select[Any]:
    return sa.select(sa.literal_column("colour").label("colour")).select_from(sa.text("no_such_place"))


@pytest.mark.parametrize(
    ("name", "condition", "phrase", "sentence"),
    [
        ("typo", "undefined_column (42703)", "no such column", "colour"),
        ("nowhere", "undefined_table (42P01)", "no such table", "no_such_place"),
    ],
)
def test_a_wrong_select_fails_at_once_with_the_conditions_name(
    shop_factory: Shop, name: str, condition: str, phrase: str, sentence: str
) -> None:
    app = shop_factory(reports=[typo, nowhere])
    expected = condition if app.store.is_postgresql else phrase
    run_id = request_report(name, effects=app).run_id
    drain(app)

    status = report_status(run_id, effects=app)
    assert (status.state, expected in str(status.error_text)) == ("failed", True)
    assert sentence not in str(status.error_text)
    assert [job["attempts"] for job in rows(app, "job_history", "status = 'dead'")] == [1]
    [refusal] = explain_report(name, effects=app).refusals
    assert expected in refusal
    assert sentence in refusal


CENTS = sa.func.sum(orders.c.cents).label("cents")
CHUNK_ROWS = 200
SQL = "SELECT id, cents FROM orders"
# What sees all rows, whatever range of the key is asked for.
WHOLE: dict[str, sa.Select[Any] | str] = {
    "window": sa.select(orders.c.id, sa.func.row_number().over(order_by=orders.c.cents).label("rank")),
    "limit": sa.select(sa.select(orders).order_by(orders.c.cents).limit(5000).subquery("limited")),
    "group by another": "SELECT max(id) AS id, cents FROM orders GROUP BY cents",
    "materialised": f"WITH listed AS MATERIALIZED ({SQL}) SELECT id, cents FROM listed",
    "recursive": (
        "WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n WHERE id < 2000) "
        "SELECT id, id AS cents FROM n"
    ),
    "except": f"{SQL} EXCEPT {SQL} WHERE id < 0",
}
# What a range of the key restricts: chunks are cheap.
RANGES: dict[str, sa.Select[Any] | str] = {
    "plain": sa.select(orders.c.id, orders.c.cents),
    "group by the key": sa.select(orders.c.id, CENTS).group_by(orders.c.id),
    "window over the key": "SELECT id, count(*) OVER (PARTITION BY id) AS cents FROM orders",
    "union all": sa.union_all(
        sa.select(orders.c.id, orders.c.cents).where(orders.c.id <= 1000),
        sa.select(orders.c.id, orders.c.cents).where(orders.c.id > 1000),
    ),
    "volatile": "SELECT id, random() * 0 AS cents FROM orders",
    "joined": "SELECT o.id, p.cents FROM orders AS o JOIN orders AS p ON p.id = o.id",
}


class Shouted(sa.TypeDecorator[str]):
    """What it makes of EXPLAIN's own columns would be an error."""

    impl = sa.Text
    cache_ok = True

    def process_result_value(self, value: str | None, dialect: Any) -> str | None:
        return None if value is None else value.upper()


RANGES["of types that read their values"] = sa.select(
    *(sa.type_coerce(orders.c.customer, Shouted).label(name) for name in "abcd"), orders.c.id, orders.c.cents
)
OF_POSTGRESQL: dict[str, tuple[str, bool]] = {
    "distinct on another": ("SELECT DISTINCT ON (cents) id, cents FROM orders ORDER BY cents, id", True),
    "distinct on the key": ("SELECT DISTINCT ON (id) id, cents FROM orders ORDER BY id, cents", False),
    "function": ("SELECT id, id AS cents FROM generate_series(1, 2000) AS id", True),
}


def _definition(name: str, statement: Any) -> Any:
    options: dict[str, Any] = {"key": ("id",), "chunk_rows": CHUNK_ROWS, "dialect": "rfc4180"}
    if isinstance(statement, str):
        statement = sa.select(sa.text(statement).columns(id=sa.Integer, cents=sa.Integer).subquery("written"))
    return report(name.replace(" ", "_"), **options)(lambda: statement)


@pytest.mark.slow
def test_a_range_that_would_compute_the_whole_select_each_time_is_one_chunk(shop_factory: Shop) -> None:
    """The plan recognises it from EXPLAIN, and so does `explain`, which reads no row."""
    cases = {name: (statement, True) for name, statement in WHOLE.items()}
    cases |= {name: (statement, False) for name, statement in RANGES.items()}
    app = shop_factory()
    if app.store.is_postgresql:
        cases |= OF_POSTGRESQL
    app = shop_factory(reports=[_definition(name, statement) for name, (statement, _) in cases.items()])
    fill(app, 2000)
    with app.engine.begin() as connection:
        connection.exec_driver_sql("ANALYZE")

    explanations = {name: explain_report(name.replace(" ", "_"), effects=app) for name in cases}
    runs = {name: request_report(explanations[name].report, effects=app).run_id for name in cases}
    drain(app)

    statuses = {name: report_status(run_id, effects=app) for name, run_id in runs.items()}
    assert {name: (status.state, status.rows) for name, status in statuses.items()} == dict.fromkeys(
        cases, ("ready", 2000)
    )
    chunks = {name: 1 if is_whole else 10 for name, (_, is_whole) in cases.items()}
    assert {name: status.progress.chunks_total for name, status in statuses.items()} == chunks
    for name, explanation in explanations.items():
        if explanation.rows_estimated is not None and explanation.rows_estimated <= CHUNK_ROWS:
            continue  # PostgreSQL expects a chunk at most, of a recursion for example
        is_whole = explanation.bounds.startswith("one part: for each range of the key the database would compute all")
        assert (name, is_whole, explanation.parallel) == (name, cases[name][1], 1 if is_whole else 4)
        header, *file = csv_rows(content(app, runs[name]))
        ids = [int(row[header.index("id")]) for row in file]
        assert ids == sorted(set(ids))


def test_any_handlers_database_error_has_its_conditions_name(shop_factory: Shop) -> None:
    app = shop_factory()
    with app.engine.connect() as connection, pytest.raises(sa.exc.DBAPIError) as raised:
        connection.exec_driver_sql("SELECT colour FROM effects_jobs WHERE id = 4711")
    outcome = JobType[dict[str, Any]]().classify(raised.value, released=False)
    expected = (
        "ProgrammingError: undefined_column (42703)" if app.store.is_postgresql else "OperationalError: no such column"
    )
    assert outcome.message == expected
