"""Rows of reports that someone has altered by SQL into what no code could read: refused by the database."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy.exc import IntegrityError

from effects import Effects
from effects.keys.encryption import generate_key
from effects_reports import find_report, list_subscriptions, request_report, subscribe
from tests.reports.conftest import Shop, drain, file_ready
from tests.reports.served import BASE
from tests.reports.shop import fill
from tests.support.manual_workers import run_sql


@pytest.fixture
def app(shop_factory: Shop, tmp_path: Path) -> Effects:
    templates = file_ready(tmp_path, "{{ report }}", "{{ link }}\n")
    app = shop_factory(
        keys=f"k={generate_key()}", templates=templates, email_from="shop@example.com",
        smtp_url=f"maildir:{tmp_path / 'mail'}",
    )  # fmt: skip
    fill(app, 5)
    return app


def alter(app: Effects, table: str, column: str, value: str) -> None:
    run_sql(app, f"UPDATE effects_{table} SET {column} = {app.store.sql.bound('value', 'json')}", value=value)


@pytest.mark.parametrize(("column", "value"), [("params", "[]"), ("params", "null"), ("columns", "{}")])
def test_params_of_a_run_are_an_object_and_its_columns_an_array(app: Effects, column: str, value: str) -> None:
    request_report("orders", {}, key="1", effects=app)
    drain(app)
    with pytest.raises(IntegrityError, match="ck_effects_report_runs_json"):
        alter(app, "report_runs", column, value)
    run = find_report("orders", key="1", effects=app)
    assert run is not None
    assert run.state == "ready"


@pytest.mark.parametrize("column", ["params", "notice"])
def test_params_and_notice_of_a_subscription_are_objects(app: Effects, column: str) -> None:
    subscribe("orders", {}, to="ann@example.com", template="file_ready", cron="0 2 * * *", link_to=BASE, effects=app)
    with pytest.raises(IntegrityError, match="ck_effects_report_subscriptions_json"):
        alter(app, "report_subscriptions", column, '"x"')
    assert len(list_subscriptions(effects=app)) == 1
