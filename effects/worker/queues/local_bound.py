"""A job type's own bound of a limit key, asked where what it answers or raises must not stop a claim."""

from __future__ import annotations

import logging
from typing import Any

from effects.logs import RateLimitedLogger
from effects.model.job_type import JobType, safe_message
from effects.text.wording import described
from effects.worker.machine.runtime import Runtime

_log = logging.getLogger("effects.worker")


class LocalBound:
    """`JobType.max_in_flight`, checked: a failure is logged (`limits.bound_failed`) and bounds nothing."""

    def __init__(self, job_type: JobType[Any], runtime: Runtime) -> None:
        self._job_type, self._is_interrupt = job_type, runtime.is_interrupt
        self._failures = RateLimitedLogger(_log, "limits.bound_failed")

    def __call__(self, limit_key: str) -> int | None:
        try:
            most: object = self._job_type.max_in_flight(limit_key)
        except BaseException as error:
            if self._is_interrupt(error):
                raise
            self._failures.error(f"{self._job_type.name}: max_in_flight: {safe_message(error)}")
            return None
        if most is None or (isinstance(most, int) and not isinstance(most, bool) and most >= 1):
            return most
        self._failures.error(f"{self._job_type.name}: max_in_flight returned {described(most)}; give a count, or None")
        return None
