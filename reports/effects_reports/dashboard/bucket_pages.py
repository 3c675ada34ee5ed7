"""Buckets of customers, with what became of their newest deliveries."""

from __future__ import annotations

from effects.web import LIVE_SECONDS, PageAnswer, Visit, notice
from effects_reports.delivery.overview import bucket_health

BUCKETS_MAX = 500
RECENT = 60


def buckets(visit: Visit) -> PageAnswer:
    """Buckets by name; no credentials, which are sealed."""
    every = visit.read("buckets", LIVE_SECONDS, lambda: bucket_health(visit.app))
    return visit.page(
        "reports/buckets.html", buckets=every[:BUCKETS_MAX], more=len(every) - BUCKETS_MAX, recent=RECENT,
        notice=notice(visit),
    )  # fmt: skip
