"""Job types whose effect is a line in a file: ten thousand of them cost next to nothing."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from effects import Attempt, Done, Effects, JobType, Outcome, RetryPolicy
from effects.retry import Fixed, OnUnknown

FILE = "FILE_JOBS_FILE"  # the variable that names it


class FileJob(msgspec.Struct, frozen=True):
    number: int


class FileJobType(JobType[FileJob]):
    """`file_job` repeats what is unknown; `file_job.held` marks the point of no return and holds it for a person."""

    payload = FileJob
    retry = RetryPolicy(backoff=Fixed(0.05), max_attempts=20, jitter=0.0)
    time_limit_seconds = 2.0

    def __init__(self, name: str, on_unknown: OnUnknown) -> None:
        self.name = name
        self.on_unknown = on_unknown

    def perform(self, payload: FileJob, attempt: Attempt) -> Outcome:
        if self.on_unknown == "hold":
            attempt.release()
        with Path(os.environ[FILE]).open("ab", buffering=0) as file:  # a short line is appended whole
            file.write(b"%d\n" % payload.number)
        return Done()


def file_jobs_app(url: str | None = None, **options: Any) -> Effects:
    return Effects(url, job_types=[FileJobType("file_job", "repeat"), FileJobType("file_job.held", "hold")], **options)


def written(file: Path) -> Counter[int]:
    """How often each file_job was written."""
    return Counter(int(line) for line in file.read_bytes().splitlines())
