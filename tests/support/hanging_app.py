"""An app whose job type hangs in C, in the hook that the environment's HANG names."""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Sequence
from typing import Any

from effects import Attempt, Done, Effects, JobType
from effects.model.job import Job

HANG = os.environ.get("HANG", "")


def hang(where: str) -> None:
    """Lock a mutex of C's twice: no signal interrupts that, and no handler of Python's runs."""
    if where == HANG:
        logging.getLogger("effects.worker").warning("hang.begins")
        mutex = ctypes.create_string_buffer(256)
        library = ctypes.CDLL(None)
        library.pthread_mutex_lock(mutex)
        library.pthread_mutex_lock(mutex)


class Hanging(JobType[dict[str, Any]]):
    name = "hang"
    payload = dict

    def load(self, connection: Any, jobs: Sequence[tuple[Job, dict[str, Any]]]) -> dict[int, Any]:
        hang("load")
        return {}

    def perform(self, payload: dict[str, Any], attempt: Attempt) -> Done:
        return Done()

    def worker_ends(self) -> None:
        hang("worker_ends")


app = Effects(job_types=[Hanging()])
