"""Django's connections in the threads of a worker, which live for many jobs."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, cast

from asgiref.sync import sync_to_async
from django.db import close_old_connections

from effects.model.attempt import Attempt
from effects.model.job_type import JobType


def close_connections_around(job_type: JobType[Any]) -> None:
    """Close connections that are broken or older than CONN_MAX_AGE around each attempt, as Django does per request.

    Those of an async handler are of the thread in which Django carries out the ORM calls of async code.
    """
    perform = job_type.perform

    def with_usable_connections(payload: Any, attempt: Attempt) -> Any:
        close_old_connections()
        try:
            return perform(payload, attempt)
        finally:
            close_old_connections()

    async def with_usable_connections_async(payload: Any, attempt: Attempt) -> Any:
        close = sync_to_async(close_old_connections)
        await close()
        try:
            return await cast("Awaitable[Any]", perform(payload, attempt))
        finally:
            await close()

    around = with_usable_connections_async if job_type.is_async else with_usable_connections
    job_type.perform = around  # type: ignore[method-assign]
