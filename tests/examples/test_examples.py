"""Every file in `examples/` does what it says."""

from __future__ import annotations

import asyncio
import configparser
import datetime as dt
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import httpx
import pytest
from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from effects import Effects
from effects.cli.work import work
from effects.model.schedules import Cron
from effects.worker import Worker
from effects_webhooks import add_endpoint
from tests.examples.conftest import EXAMPLES, Load, Shell, on_one_database
from tests.support.manual_workers import rows

UNITS = sorted((EXAMPLES / "systemd").iterdir())
CRON_LINE = re.compile(r"((?:\S+\s+){5})(.*)")


@on_one_database
def test_cleanup_nightly(load: Load, shell: Shell) -> None:
    example = load("cleanup_nightly")
    app: Effects = example.app
    example.sessions.metadata.create_all(app.engine)
    with app.engine.begin() as connection:
        days = [dt.date(2026, 1, 13), dt.date(2026, 1, 14), dt.date(2026, 1, 15)]
        connection.execute(insert(example.sessions), [{"id": n, "expires_on": day} for n, day in enumerate(days)])
    shell("effects --app cleanup_nightly:app init")
    assert "shop.cleanup_nightly" in shell("effects --app cleanup_nightly:app schedules list").stdout
    run = "effects --app cleanup_nightly:app schedules run shop.cleanup_nightly --slot"
    shell(f"{run} 2026-01-14T02:30")
    assert "its key already exists" in shell(f"{run} 2026-01-14T09:00").stdout  # by hand, later that day
    shell("effects --app cleanup_nightly:app work --drain")
    with app.engine.connect() as connection:
        assert [row.id for row in connection.execute(select(example.sessions))] == [1, 2]
    assert "was done" in shell("effects --app cleanup_nightly:app why cleanup:2026-01-14").stdout
    app.dispose()


@on_one_database
def test_the_commands_of_the_readme_work_as_they_stand(shell: Shell) -> None:
    lines = re.findall(r"^    (.+)$", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    done = shell("set -e\n" + "\n".join(lines))
    assert "job.succeeded job=1 type=shop.cleanup_nightly" in done.stderr


@on_one_database
def test_send_weekly_report_for_the_last_week(load: Load, shell: Shell, tmp_path: Path) -> None:
    example = load("weekly_report")
    app: Effects = example.app
    example.orders.metadata.create_all(app.engine)
    with app.engine.begin() as connection:
        days = [dt.date(2026, 1, day) for day in (4, 5, 11, 12)]  # a Sunday, the week's Monday and Sunday, a Monday
        facts = [{"id": n, "ordered_on": day, "cents": 100 * n} for n, day in enumerate(days)]
        connection.execute(insert(example.orders), facts)
    shell("effects --app weekly_report:app init")
    run = "effects --app weekly_report:app schedules run shop.weekly_report --slot"
    shell(f"{run} 2026-01-12T05:00")
    done = shell("effects --app weekly_report:app work --drain")
    message = "the orders of the week from 2026-01-05 are in orders-2026-01-05.csv"
    assert done.stdout.splitlines() == [message], done.stderr
    report = tmp_path / "orders-2026-01-05.csv"
    assert report.read_text().split() == ["id,ordered_on,cents", "1,2026-01-05,100", "2,2026-01-11,200"]
    shell(f"{run} 2026-01-12T05:00", code=2)  # this slot has run already
    assert "was done" in shell("effects --app weekly_report:app why weekly_report:2026-01-05").stdout
    app.dispose()


def test_a_purchase_and_its_webhook_are_one_commit(load: Load, shell: Shell) -> None:
    example = load("purchase")
    app: Effects = example.app
    add_endpoint("https://partner.example/", ["order.*"], effects=app)
    done = shell("python purchase.py")
    assert "is on its way to 1 endpoints" in done.stdout
    with Session(app.engine) as session:
        example.purchase(session, "kettle", 4990)
        session.rollback()
        assert [order.item for order in session.scalars(select(example.Order))] == ["teapot"]
    assert [row["key"] for row in rows(app, "webhook_events")] == ["order:1:paid"]
    assert [row["job_type"] for row in rows(app, "jobs")] == ["webhook.deliver"]
    app.dispose()


def test_the_shop(load: Load) -> None:
    shop = load("shop")
    app: Effects = shop.effects
    add_endpoint("https://partner.example/", ["order.*"], effects=app)
    asyncio.run(visit(shop, app))
    assert [row["state"] for row in rows(app, "effect_ledger", "job_type = 'shop.print_label'")] == ["done"]


async def visit(shop: ModuleType, app: Effects) -> None:
    order = {"item": "teapot", "cents": 1990, "address": "1 Secret Street"}
    transport = httpx.ASGITransport(app=shop.web)
    async with (
        shop.web.router.lifespan_context(shop.web),
        httpx.AsyncClient(transport=transport, base_url="http://shop.example") as client,
    ):
        assert (await client.post("/orders", json=order)).json() == {"id": 1}
        assert (await client.post("/orders", json={**order, "item": "unicorn"})).status_code == 409
        assert (await client.post("/orders", json={**order, "cents": 0})).status_code == 422
        assert {row["job_type"] for row in rows(app, "jobs")} == {"shop.print_label", "webhook.deliver"}
        assert "Secret" not in str(rows(app, "jobs"))
        assert (await client.get("/orders/1/label")).json() == {"state": "waiting", "attempts": 0}
        await asyncio.to_thread(Worker(app, queues={"default": 1}).drain)
        assert [label.address for label in shop.labels.printed] == ["1 Secret Street"]
        assert "Secret" not in repr(shop.labels.printed)
        assert (await client.get("/orders/1/label")).json() == {"state": "done", "attempts": 1}
        assert (await client.get("/orders/7/label")).status_code == 404


def test_the_shop_in_async_code(load: Load) -> None:
    shop = load("async_shop")
    app: Effects = shop.effects
    add_endpoint("https://partner.example/", ["order.*"], effects=app)
    asyncio.run(visit_async(shop, app))
    assert [row["state"] for row in rows(app, "effect_ledger")] == ["done"]


async def visit_async(shop: ModuleType, app: Effects) -> None:
    transport = httpx.ASGITransport(app=shop.web)
    async with (
        shop.web.router.lifespan_context(shop.web),
        httpx.AsyncClient(transport=transport, base_url="http://shop.example") as client,
    ):
        assert (await client.post("/orders", params={"item": "teapot"})).json() == 1
        assert (await client.post("/orders", params={"item": "unicorn"})).status_code == 409
        assert {row["job_type"] for row in rows(app, "jobs")} == {"shop.pack", "webhook.deliver"}
        assert (await client.get("/orders/1/parcel")).json() == "intended"
        await asyncio.to_thread(Worker(app, queues={"default": 1}).drain)
        assert (await client.get("/orders/1/parcel")).json() == "done"
        assert (await client.get("/orders/7/parcel")).status_code == 404


@on_one_database
def test_the_lines_of_the_crontab_run(shell: Shell, settings: dict[str, str], tmp_path: Path) -> None:
    """With its folders moved to where the test may write."""
    env_file = tmp_path / "effects.env"
    env_file.write_text("".join(f"{name}='{value}'\n" for name, value in settings.items()))
    commands = []
    for line in (EXAMPLES / "crontab").read_text().splitlines():
        if line and not line.startswith("#") and not re.match(r"[A-Z]+=", line):
            entry = CRON_LINE.fullmatch(line)
            assert entry is not None, line
            assert Cron(entry[1].strip(), "UTC").newest(dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
                                                        since=dt.datetime(2025, 12, 31, tzinfo=dt.UTC))  # fmt: skip
            assert "%" not in entry[2]  # cron would make a line end of it
            commands.append(entry[2])
    assert len(commands) == 3
    shell(f"set -a; . {env_file}; effects --app shop:effects init")  # as the deploy does
    for command in commands:
        moved = command.replace("/etc/shop/effects.env", str(env_file))
        for folder in ("/var/log/shop", "/var/lib/node_exporter"):
            moved = moved.replace(folder, str(tmp_path))
        is_postgresql = not settings["EFFECTS_DATABASE_URL"].startswith("sqlite")
        shell(moved, code=1 if "doctor" in command and is_postgresql else 0)  # the test server has fsync off
    assert "effects_workers" in (tmp_path / "effects.prom").read_text()


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_the_units_are_well_formed(unit: Path) -> None:
    parser = configparser.ConfigParser(strict=True, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(unit.read_text())
    assert parser["Unit"]["Description"]
    if unit.suffix == ".timer":
        assert parser["Timer"]["OnCalendar"]
        assert unit.with_suffix(".service") in UNITS
        return
    words = shlex.split(parser["Service"]["ExecStart"])
    assert words[:4] == ["/usr/bin/env", "effects", "--app", "shop:effects"]
    if words[4] == "work":
        work.make_context("work", words[5:])  # its options exist
    else:
        assert words[4:] == ["doctor", "--quiet"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    for unit in UNITS:
        shutil.copy(unit, tmp_path)
    verify = ["systemd-analyze", "verify", "--recursive-errors=no", *sorted(map(str, tmp_path.glob("effects-*")))]
    done = subprocess.run(verify, capture_output=True, text=True, timeout=60, check=False)
    complaints = [line for line in done.stderr.splitlines() if "effects-" in line]
    assert complaints == []


def test_every_example_is_listed() -> None:
    listed = (EXAMPLES / "README.md").read_text()
    for path in EXAMPLES.iterdir():
        if path.name not in ("README.md", "__pycache__"):
            assert f"`{path.name}{'/' if path.is_dir() else ''}`" in listed
