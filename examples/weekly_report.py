"""`send_weekly_report`: the orders of the last week as a file, every Monday at six, and word of it to the team.

The schedule names the week, not the job's start: a worker that was down over the weekend builds the same
report on Tuesday. The key contains the week, so `weekly_report:2026-11-16` exists once.
"""

from __future__ import annotations

import csv
import datetime as dt
import os
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Column, Connection, Date, Integer, MetaData, Table, select

from effects import Attempt, Done, Effects, JobType, Schedule, enqueue

FOLDER = Path(os.environ.get("SHOP_REPORTS", "."))

orders = Table(
    "shop_orders",
    MetaData(),
    Column("id", Integer, primary_key=True),
    Column("ordered_on", Date, nullable=False),
    Column("cents", Integer, nullable=False),
)


@dataclass
class Week:
    """From Monday `since` up to, and without, Monday `until`."""

    since: dt.date
    until: dt.date


@dataclass
class Word:
    text: str


class SendWeeklyReport(JobType[Week]):
    name = "shop.send_weekly_report"
    payload = Week
    queue = "reports"  # a queue of its own: it never delays anything else
    time_limit_seconds = 600

    def perform(self, payload: Week, attempt: Attempt) -> Done:
        target = FOLDER / f"orders-{payload.since}.csv"
        half = target.with_suffix(f".{os.getpid()}-{attempt.number}")
        with app.engine.connect() as connection, half.open("w", newline="") as file:
            rows = connection.execute(
                select(orders).where(orders.c.ordered_on >= payload.since, orders.c.ordered_on < payload.until)
            )
            writer = csv.writer(file)
            writer.writerow(["id", "ordered_on", "cents"])
            writer.writerows(rows)
        half.replace(target)  # all of it or nothing; building it again gives the same file

        def tell(connection: Connection) -> None:
            text = f"the orders of the week from {payload.since} are in {target.name}"
            enqueue("shop.tell_team", Word(text), key=f"told:{payload.since}", session=connection, effects=app)

        return Done(apply=tell)


class TellTeam(JobType[Word]):
    """Stands for the mail or the chat message that you would send."""

    name = "shop.tell_team"
    payload = Word

    def perform(self, payload: Word, attempt: Attempt) -> None:
        print(payload.text)


app = Effects(
    job_types=[SendWeeklyReport(), TellTeam()],
    schedules=[
        Schedule(
            name="shop.weekly_report",
            job_type="shop.send_weekly_report",
            payload={"since": "{previous_slot_date}", "until": "{slot_date}"},
            cron="0 6 * * MON",
            zone="Europe/Berlin",
            catch_up="latest",
            key="weekly_report:{previous_slot_date}",
        )
    ],
)
