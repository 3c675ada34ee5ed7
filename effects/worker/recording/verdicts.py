"""Writing outcomes so that the verdict is written even if its details cannot be.

A failing batch is halved until one outcome is alone. More and more of its details are then left out:

    as it is  →  without detail, message, stack and text  →  its `apply` counts as failed  →  the ledger's state alone

Only a failing `apply` turns a "done" into an unknown: other errors do not concern the effect.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from msgspec.structs import replace

from effects.errors import StoreConflict, StoreUnavailable, WorkerCannotContinue
from effects.model.decision import decide
from effects.model.job import AttemptId
from effects.model.ledger import Ledger
from effects.model.outcome import Outcome, Refused, Retry, Unknown
from effects.model.registry import Registry
from effects.model.settlement import Settlement
from effects.store.db.faults import Fault
from effects.store.db.store import Store
from effects.store.queue.settle import ApplyFailed, Settled, settle
from effects.store.queue.table_ledger import bare_ledgers
from effects.text.scrub import class_name
from effects.worker.attempts.raised import with_error
from effects.worker.supervision.outage import Outage

BATCH_CHARS_MAX = 4_000_000  # of attempts' reports in one statement
APPLIES_MAX = 250  # an `apply` is the app's code: it may take long, and what it locks stays locked until the commit

_log = logging.getLogger("effects.worker")


class VerdictWriter:
    """Writes settlements in as few statements as the size of their reports allows.

    Args:
        give_up: called while the database is unavailable; unwritten settlements are then left to rescue.
        put_aside: takes what another transaction keeps from being written, to be tried again.
        leave: takes what cannot be written even at its barest.
        bound_seconds: a transaction that takes longer is cut off, and was too much, or the database hangs.
        now: the worker's monotonic clock.
    """

    def __init__(
        self,
        store: Store,
        job_types: Registry,
        ledgers: Mapping[str, Ledger],
        outage: Outage,
        *,
        give_up: Callable[[], bool],
        put_aside: Callable[[Settlement], None],
        leave: Callable[[Settlement], None],
        bound_seconds: float,
        now: Callable[[], float],
    ) -> None:
        self._store, self._job_types, self._ledgers, self._outage = store, job_types, ledgers, outage
        self._bare_ledgers = bare_ledgers(ledgers)
        self._give_up, self._put_aside, self._leave, self._now = give_up, put_aside, leave, now
        self._bound_seconds = bound_seconds
        self._cut_at: dict[AttemptId, float] = {}  # job and token → when its `apply` was first cut off

    def write(self, batch: Sequence[Settlement], *, brisk: bool = False) -> Iterator[Settled]:
        """Write them all. What cannot be written even at its barest keeps its lease until rescue takes the job.

        Args:
            brisk: hardly wait for a lock.
        """
        for part in parts(batch):
            yield from self._write(part, brisk)

    def _write(self, part: Sequence[Settlement], brisk: bool) -> Iterator[Settled]:
        try:
            written = self._settle(part, self._ledgers, brisk)
        except WorkerCannotContinue:
            raise  # no outcome is at fault
        except Exception as error:
            in_the_way = isinstance(error, StoreConflict)
            was_cut = isinstance(error, StoreUnavailable) and not in_the_way
            if len(part) > 1:
                for piece in _pieces(part, was_cut):
                    yield from self._write(piece, in_the_way)
            elif in_the_way or (was_cut and not self._is_too_slow(part[0])):
                self._put_aside(part[0])
            else:
                yield from self._write_reduced(part[0], _of_apply(error) if was_cut else error)
        else:
            if len(part) == 1:
                self._cut_at.pop(part[0].job.attempt_id, None)
            if written is not None:
                yield written

    def _is_too_slow(self, settlement: Settlement) -> bool:
        """Whether its `apply` was cut off before, and the database has answered since: it is not the database."""
        cut_at = self._cut_at.setdefault(settlement.job.attempt_id, self._now())
        return self._outage.ended_at > cut_at

    def _settle(self, part: Sequence[Settlement], ledgers: Mapping[str, Ledger], brisk: bool) -> Settled | None:
        return self._outage.retry_until_available(
            lambda: settle(self._store, part, ledgers, now=self._now()),
            give_up=self._give_up,
            passing=_faults_of(part),
            brisk=brisk,
            long_seconds=self._bound_seconds if len(part) > 1 or part[0].apply is not None else float("inf"),
        )

    def _write_reduced(self, settlement: Settlement, error: Exception) -> Iterator[Settled]:
        for reduced, ledgers in self._reductions(settlement, error):
            _log_failure(settlement, error)
            try:
                written = self._settle([reduced], ledgers, brisk=True)
            except StoreConflict:
                self._put_aside(settlement)
                return
            except WorkerCannotContinue:
                raise
            except Exception as next_error:
                error = next_error
            else:
                if written is not None:
                    yield written
                return
        _log_failure(settlement, error)
        self._leave(settlement)

    def _reductions(
        self, settlement: Settlement, error: Exception
    ) -> Iterator[tuple[Settlement, Mapping[str, Ledger]]]:
        """Versions of a settlement with ever fewer details, each with its ledgers."""
        if not isinstance(error, ApplyFailed):
            yield _bare(settlement, error), self._ledgers
        if settlement.apply is not None:
            settlement = self._apply_failed(settlement, error)
            yield settlement, self._ledgers
        yield _bare(settlement, error), self._bare_ledgers

    def _apply_failed(self, settlement: Settlement, error: Exception) -> Settlement:
        """The effect happened and what was to be recorded with it did not: the type's policy for an unknown decides.

        An `apply` that raises `Refused` was the effect itself, and says that it has not happened.
        """
        cause = error.__cause__ if isinstance(error, ApplyFailed) and error.__cause__ is not None else error
        if isinstance(cause, Refused):
            return self._decided(settlement, cause)
        text = f"recording the outcome failed: {class_name(cause)}"
        happened = settlement.verdict in ("done", "unknown")
        failure = Unknown(text, code="apply_failed") if happened else Retry(text, code="apply_failed")
        verdict = "unknown" if happened else settlement.verdict
        return with_error(replace(self._decided(settlement, failure), outcome="failed", verdict=verdict), cause)

    def _decided(self, settlement: Settlement, outcome: Outcome) -> Settlement:
        """What this outcome means for the same attempt."""
        decision = decide(settlement.job, self._job_types.get(settlement.job.job_type), outcome, released=True)
        return replace(
            decision, execution=settlement.execution, duration_seconds=settlement.duration_seconds,
            ended_at_monotonic=settlement.ended_at_monotonic,
        )  # fmt: skip


def _pieces(part: Sequence[Settlement], was_cut: bool) -> list[Sequence[Settlement]]:
    """Halves of a batch that failed. Of one that took too long, each that runs code of the app is alone."""
    applying = [[settlement] for settlement in part if settlement.apply is not None] if was_cut else []
    if not applying:
        middle = len(part) // 2
        return [part[:middle], part[middle:]]
    others = [settlement for settlement in part if settlement.apply is None]
    return [others, *applying] if others else [*applying]


def _of_apply(error: Exception) -> ApplyFailed:
    failed = ApplyFailed()
    failed.__cause__ = error
    return failed


def _faults_of(part: Sequence[Settlement]) -> Collection[Fault]:
    """Errors about one of these settlements. A missing table or privilege counts if an `apply` may have caused it."""
    about_one = {Fault.CONFLICT, Fault.DATA, Fault.BUG}
    foreign = any(settlement.apply is not None for settlement in part)
    return about_one | {Fault.SCHEMA, Fault.DENIED} if foreign else about_one


def parts(batch: Sequence[Settlement]) -> Iterator[list[Settlement]]:
    """The batch in its order, in pieces of which each is small enough for one statement and one transaction."""
    piece: list[Settlement] = []
    chars = applies = 0
    for settlement in batch:
        weight, applied = _weight(settlement), settlement.apply is not None
        if piece and (chars + weight > BATCH_CHARS_MAX or applies + applied > APPLIES_MAX):
            yield piece
            piece, chars, applies = [], 0, 0
        piece.append(settlement)
        chars += weight
        applies += applied
    if piece:
        yield piece


def _weight(settlement: Settlement) -> int:
    chars = len(settlement.message or "") + len(settlement.stack or "")
    if settlement.detail is not None:
        chars += len(repr(settlement.detail))
    if settlement.error_text is not None:
        chars += len(repr(settlement.error_text))
    return chars


def _bare(settlement: Settlement, error: Exception) -> Settlement:
    """The bare verdict, with the reason for the missing details."""
    text = f"the attempt's details could not be stored: {class_name(error)}"
    return replace(settlement, detail=None, message=text, stack=None, error_type=None, error_text=None)


def _log_failure(settlement: Settlement, error: Exception) -> None:
    job, cause = settlement.job, error.__cause__ if isinstance(error, ApplyFailed) else error
    _log.error("settle.failed", extra={"job": job.id, "type": job.job_type, "error": class_name(cause)})
