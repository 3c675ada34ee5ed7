"""Delete expired sessions every night at half past three, by the clock on the wall.

The work is database work in the database of the queue, so it rides on the outcome: `Done(apply=…)` runs in the
transaction that records the job as done. It happens exactly once for a night, whatever crashes.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from sqlalchemy import Column, Connection, Date, Integer, MetaData, Table, delete

from effects import Attempt, Done, Effects, JobType, Schedule

sessions = Table(
    "shop_sessions", MetaData(), Column("id", Integer, primary_key=True), Column("expires_on", Date, nullable=False)
)


@dataclass
class Cleanup:
    expired_before: dt.date


class CleanupNightly(JobType[Cleanup]):
    name = "shop.cleanup_nightly"
    payload = Cleanup

    def perform(self, payload: Cleanup, attempt: Attempt) -> Done:
        def clean(connection: Connection) -> None:
            connection.execute(delete(sessions).where(sessions.c.expires_on < payload.expired_before))

        return Done(apply=clean, detail={"expired_before": payload.expired_before.isoformat()})


app = Effects(
    job_types=[CleanupNightly()],
    schedules=[
        Schedule(
            name="shop.cleanup_nightly",
            job_type="shop.cleanup_nightly",
            payload={"expired_before": "{slot_date}"},
            cron="30 3 * * *",
            zone="Europe/Berlin",
            key="cleanup:{slot_date}",
        )
    ],
)
