"""The exit codes of every command, in one place. The README has the same table for operators."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """How a command ended. Any other code comes from the shell or from an uncaught signal."""

    DONE = 0
    FINDINGS = 1  # warnings, a firing alert, a refused action, a drain that left a dead job
    ERROR = 2  # one line on standard error: what, and how to fix it
    TIME_RAN_OUT = 3  # `work --drain --max-seconds` left something that is due; `jobs wait`: it has not ended
    PART_FAILED = 70  # EX_SOFTWARE: a part of the worker died or stalled; start a fresh process
    HANDLERS_HANG = 75  # EX_TEMPFAIL: too many handlers hang; start a fresh process
    INTERRUPTED = 130  # 128 + SIGINT
    FORCED = 143  # 128 + SIGTERM: a second signal ended what would not end by itself
