"""A job as a claim would give it."""

from __future__ import annotations

from typing import Any

from effects import Job


def job(**facts: Any) -> Job:
    defaults: dict[str, Any] = {
        "id": 1, "job_type": "scripted", "payload": "{}", "queue": "default", "priority": 5, "attempts": 1,
        "max_attempts": None, "lease_token": 1, "lost_count": 0, "unknown_count": 0, "released": False,
        "routed": True, "expired": False, "cancel_requested": False, "age_seconds": 0.0,
    }  # fmt: skip
    return Job(**{**defaults, **facts})
