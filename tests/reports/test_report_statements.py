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


def ranked(window: bool) -> sa.Select[Any]:
    rank = sa.func.row_number().over(order_by=orders.c.cents) if window else orders.c.cents
    return sa.select(orders.c.id, orders.c.customer, rank.label("rank"))


def test_a_range_that_would_compute_the_whole_select_each_time_is_one_chunk(shop_factory: Shop) -> None:
    """A window sees all rows, whatever range of them is asked for; a grouped key restricts what is grouped."""
    sums = sa.select(orders.c.id, sa.func.sum(orders.c.cents).label("sum")).group_by(orders.c.id)
    definitions = [
        report("ranked", key=("id",), chunk_rows=200, dialect="rfc4180")(lambda: ranked(True)),
        report("listed", key=("id",), chunk_rows=200, dialect="rfc4180")(lambda: ranked(False)),
        report("summed", key=("id",), chunk_rows=200, dialect="rfc4180")(lambda: sums),
    ]
    app = shop_factory(reports=definitions)
    fill(app, 2000)
    with app.engine.begin() as connection:
        connection.exec_driver_sql("ANALYZE")
    run_ids = [request_report(definition.name, effects=app).run_id for definition in definitions]
    drain(app)

    statuses = [report_status(run_id, effects=app) for run_id in run_ids]
    assert [(status.state, status.rows) for status in statuses] == [("ready", 2000)] * 3
    of_ranked = 1 if app.store.is_postgresql else 10  # SQLite does not tell what a plan costs
    assert [status.progress.chunks_total for status in statuses] == [of_ranked, 10, 10]
    assert [row[0] for row in csv_rows(content(app, run_ids[0]))[1:]] == [str(3 * n) for n in range(1, 2001)]


def test_any_handlers_database_error_has_its_conditions_name(shop_factory: Shop) -> None:
    app = shop_factory()
    with app.engine.connect() as connection, pytest.raises(sa.exc.DBAPIError) as raised:
        connection.exec_driver_sql("SELECT colour FROM effects_jobs WHERE id = 4711")
    outcome = JobType[dict[str, Any]]().classify(raised.value, released=False)
    expected = (
        "ProgrammingError: undefined_column (42703)" if app.store.is_postgresql else "OperationalError: no such column"
    )
    assert outcome.message == expected
