"""The exit codes of every command, in one place: docs/commands.md shows this table."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """How a command ended. Any other code comes from the shell or from an uncaught signal."""

    meaning: str

    def __new__(cls, code: int, meaning: str) -> ExitCode:
        member = int.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member

    DONE = 0, "done"
    FINDINGS = (
        1,
        (
            "findings: warnings, a firing alert, a refused action; a drain that left a dead job; a failed `--wait`; "
            "a worker whose interpreter stood still (`Timeout` and its threads on standard error)"
        ),
    )
    ERROR = 2, "error: one line on standard error; a group without a command: its help"
    TIME_RAN_OUT = (
        3,
        (
            "time ran out: `work --drain --max-seconds` left due jobs; a drain left due jobs of unregistered types; "
            "what `jobs wait` or `--wait` waited for has not ended"
        ),
    )
    PART_FAILED = 70, "a part of the worker died or stalled, as logged. Start a fresh process"
    HANDLERS_HANG = (
        75,
        (
            "too many handlers hang past their time limits: start a fresh process; what was piped in could not be "
            "taken: pipe it again"
        ),
    )
    INTERRUPTED = 130, "interrupted"
    FORCED = 143, "ended by force: a second signal while something hung"
