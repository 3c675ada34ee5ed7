"""Values that a report cannot hold fail it once, with the column and the kind; values that Python lacks arrive."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from effects import Effects
from effects_reports import report, report_status, request_report
from tests.reports.conftest import Shop, content, drain
from tests.support.manual_workers import rows, run_sql

TERMS = sa.table("terms", sa.column("valid_to", sa.DateTime(timezone=True)), sa.column("id", sa.Integer))


def _definitions() -> list[Any]:
    every = {"formats": ("csv", "ndjson", "xlsx"), "chunk_rows": 1}
    return [
        report("terms", key=("valid_to", "id"), **every)(lambda params: sa.select(TERMS)),
        report("mapped", key=("id",), columns=("valid_to", "id"), map_row=tuple, **every)(
            lambda params: sa.select(TERMS)
        ),
        report("ratios", key=("id",), **every)(
            lambda params: sa.select(TERMS.c.id, (sa.literal(1) / TERMS.c.id).label("ratio"))
        ),
    ]


@pytest.fixture
def terms(shop_factory: Shop) -> Effects:
    """Three rows: one that is valid forever, one that is not, one from before Christ; the last has the id 0."""
    app = shop_factory(reports=_definitions())
    if not app.store.is_postgresql:
        pytest.skip("SQLite has none of these values")
    run_sql(app, "CREATE TABLE terms (valid_to timestamptz, id integer)")
    run_sql(app, "INSERT INTO terms VALUES ('infinity', 1), ('2026-01-12', 2), ('0044-03-15 BC', 0)")
    return app


@pytest.mark.parametrize("format", ["csv", "ndjson", "xlsx"])
def test_moments_that_python_lacks_arrive_and_may_be_keys(terms: Effects, format: str) -> None:  # noqa: A002
    run_id = request_report("terms", format=format, effects=terms).run_id
    drain(terms)

    status = report_status(run_id, effects=terms)
    assert (status.state, status.rows, status.progress.chunks_total) == ("ready", 3, 3)
    if format != "xlsx":
        assert b"infinity" in content(terms, run_id)


@pytest.mark.parametrize(("name", "code", "says"), [
    ("mapped", "value_out_of_range", "'valid_to' (timestamp with time zone)"),
    ("ratios", "22012", "division_by_zero (22012)"),
])  # fmt: skip
def test_a_permanent_value_error_fails_the_run_at_once(terms: Effects, name: str, code: str, says: str) -> None:
    run_id = request_report(name, effects=terms).run_id
    drain(terms)

    assert report_status(run_id, effects=terms).state == "failed"
    refused = rows(terms, "job_history", "status = 'dead'")
    assert [row["attempts"] for row in refused] == [1] * len(refused)
    assert {row["error_code"] for row in refused} == {code}
    assert says in refused[0]["last_error"]
