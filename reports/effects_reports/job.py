"""The job types of reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from effects.job_type import JobType

if TYPE_CHECKING:
    from effects.app import Effects


def job_types(app: Effects) -> list[JobType[Any]]:
    """The entry point `effects.job_types`."""
    return []
