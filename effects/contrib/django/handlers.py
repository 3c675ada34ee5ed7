"""Django's connections in the threads of a worker, which live for many jobs."""

from __future__ import annotations

from typing import Any

from django.db import close_old_connections

from effects.model.attempt import Attempt
from effects.model.job_type import JobType


def close_connections_around(job_type: JobType[Any]) -> None:
    """Close connections that are broken or older than CONN_MAX_AGE around each attempt, as Django does per request."""
    perform = job_type.perform

    def with_usable_connections(payload: Any, attempt: Attempt) -> Any:
        close_old_connections()
        try:
            return perform(payload, attempt)
        finally:
            close_old_connections()

    job_type.perform = with_usable_connections  # type: ignore[method-assign]
