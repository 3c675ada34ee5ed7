"""Where a run is delivered and how far that is, and how the buckets are, for people who look."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from effects import KeyUnavailable
from effects.extend import fill_placeholders
from effects_reports.delivery.buckets import CustomerBucket, list_buckets
from effects_reports.routing import DELIVER_TYPE, bucket_limit_key
from effects_reports.runs.notify import PLACEHOLDERS, Notify, kept_notices
from effects_reports.tables.deliveries import BucketEffect, newest, of_keys

if TYPE_CHECKING:
    from effects import Effects
    from effects_reports.api import ReportStatus


class BucketDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """One file into one bucket; `state` is `waiting` before the run is ready, else that of the effect."""

    bucket: str
    state: str
    delivery: BucketEffect | None = None


class RunDeliveries(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run is delivered.

    Attributes:
        buckets: one a bucket.
        notices: job type → how many other notices there are, such as mails.
        is_sealed: they are sealed, and this process has no key to read them.
    """

    buckets: list[BucketDelivery] = []
    notices: dict[str, int] = {}
    is_sealed: bool = False


class BucketHealth(msgspec.Struct, frozen=True, kw_only=True):
    """A bucket with its newest deliveries, the newest first."""

    bucket: CustomerBucket
    deliveries: list[BucketEffect]


def run_deliveries(app: Effects, run: ReportStatus) -> RunDeliveries:
    """Where a run is delivered, and how far that is.

    Raises:
        StoreUnavailable: the database is unavailable.
    """
    with app.store.read() as connection:
        try:
            notices = kept_notices(app, connection, run.run_id)
        except KeyUnavailable:
            return RunDeliveries(is_sealed=True)
        keys = {_key_of(notice, run): notice for notice in notices if notice.job_type == DELIVER_TYPE}
        by_key = {delivery.key: delivery for delivery in of_keys(app.store, connection, list(keys))} if keys else {}
    return RunDeliveries(
        buckets=[_of_bucket(notice, by_key.get(key), run) for key, notice in keys.items()],
        notices=dict(Counter(notice.job_type for notice in notices if notice.job_type != DELIVER_TYPE)),
    )


def _key_of(notice: Notify, run: ReportStatus) -> str:
    words = {**dict.fromkeys(PLACEHOLDERS, ""), "run_id": run.run_id, "report": run.report, "key": run.key}
    return str(fill_placeholders(notice.key or "", words))


def _of_bucket(notice: Notify, delivery: BucketEffect | None, run: ReportStatus) -> BucketDelivery:
    missing = "abandoned" if run.ended else "waiting"
    state = missing if delivery is None else delivery.state
    return BucketDelivery(bucket=str(notice.payload.get("bucket")), state=state, delivery=delivery)


def bucket_health(app: Effects) -> list[BucketHealth]:
    """All buckets by name, with those of the newest 500 deliveries that went into each.

    Raises:
        StoreUnavailable: the database is unavailable.
    """
    with app.store.read() as connection:
        deliveries = newest(app.store, connection)
    return [
        BucketHealth(
            bucket=bucket,
            deliveries=[each for each in deliveries if each.limit_key == bucket_limit_key(bucket.name)],
        )
        for bucket in list_buckets(effects=app)
    ]
