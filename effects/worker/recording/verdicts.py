"""Writing outcomes so that the verdict is written even if its details cannot be.

A failing batch is halved until one outcome is alone; one whose `apply` fails is alone from then on, and the others are
written without it. More and more of its details are then left out:

    as it is  →  without detail, message, stack and text  →  its `apply` counts as failed  →  the ledger's state alone

Only a failing `apply` turns a "done" into an unknown: other errors do not concern the effect.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from msgspec.structs import replace

from effects.errors import ConfigurationError, StoreConflict, StoreUnavailable, WorkerCannotContinue
from effects.kit.logs import error_places, own_logger
from effects.kit.text.scrub import class_name
from effects.model.decision import decide
from effects.model.job import AttemptId
from effects.model.ledger import Ledger
from effects.model.outcome import Outcome, Refused, Retry, Unknown
from effects.model.settlement import Settlement
from effects.store.db.faults import Fault, fault_of
from effects.store.queue.applies import ApplyFailed, ApplyOverdue
from effects.store.queue.settle import Settled, settle
from effects.store.queue.table_ledger import bare_ledgers
from effects.worker.attempts.answer import with_error
from effects.worker.context import WorkerContext

BATCH_CHARS_MAX = 4_000_000  # of attempts' reports in one statement
APPLIES_MAX = 250  # an `apply` is the app's code: it may take long, and what it locks stays locked until the commit
SAVEPOINTS_MAX = 50  # on PostgreSQL, which keeps account of 64 in memory; with more all other sessions slow down
IN_THE_WAY_SECONDS = 600.0  # so long an `apply` may be kept from succeeding by others, such as an open transaction

_log = own_logger("effects.worker")


class VerdictWriter:
    """Writes settlements in as few statements as the size of their reports allows.

    A transaction that takes longer than a worker's may is cut off, and was too much, or the database hangs.

    Attributes:
        abandoned: write no more while the database is unavailable: unwritten settlements are left to rescue.
    """

    def __init__(self, context: WorkerContext, ledgers: Mapping[str, Ledger] | None = None) -> None:
        self._store, self._job_types, self._outage = context.store, context.job_types, context.outage
        self._ledgers = context.ledgers if ledgers is None else ledgers
        self._bare_ledgers = bare_ledgers(self._ledgers)
        self._bound_seconds = context.outage.bound_seconds
        self._now = context.runtime.monotonic
        self.abandoned = False
        self._blocked: list[Settlement] = []
        self._unwritable: list[Settlement] = []
        self._lost: set[AttemptId] = set()  # whose `apply` lost its connection, or took too long, once
        self._hanging: set[AttemptId] = set()
        self._conflict_since: dict[AttemptId, float] = {}  # whose `apply` others keep from succeeding

    def write(self, batch: Sequence[Settlement], *, brisk: bool = False) -> Iterator[Settled]:
        """Write them all. What cannot be written even at its barest keeps its lease until rescue takes the job.

        Args:
            brisk: hardly wait for a lock.
        """
        if self._hanging:
            hanging = [settlement for settlement in batch if settlement.job.attempt_id in self._hanging]
            batch = [settlement for settlement in batch if settlement.job.attempt_id not in self._hanging]
            for settlement in hanging:
                self._hanging.discard(settlement.job.attempt_id)
                failed = ApplyFailed(settlement)
                failed.__cause__ = ApplyOverdue("an apply does not return")
                yield from self._write_reduced(settlement, failed)
        for part in parts(batch, SAVEPOINTS_MAX if self._store.is_postgresql else APPLIES_MAX):
            yield from self._write(part, brisk)

    def take_left(self) -> tuple[list[Settlement], list[Settlement]]:
        """What `write` has left: kept back by another transaction, to be tried again; and not writable at all."""
        blocked, self._blocked = self._blocked, []
        unwritable, self._unwritable = self._unwritable, []
        return blocked, unwritable

    def blame(self, settlement: Settlement) -> None:
        """Its `apply` does not return: it counts as failed when it is next written."""
        self._hanging.add(settlement.job.attempt_id)

    def _write(self, part: Sequence[Settlement], brisk: bool) -> Iterator[Settled]:
        try:
            written = self._settle(part, self._ledgers, brisk)
        except WorkerCannotContinue:
            raise  # no outcome is at fault
        except ApplyFailed as failed:
            yield from self._write_around(part, failed, brisk)
        except Exception as error:
            in_the_way = isinstance(error, StoreConflict)
            if len(part) > 1:
                lost = isinstance(error, StoreUnavailable) or fault_of(error) is Fault.LOST
                for piece in _pieces(part, apart=lost and not in_the_way):
                    yield from self._write(piece, in_the_way)
            elif in_the_way:
                self._blocked.append(part[0])
            else:
                yield from self._write_reduced(part[0], error)
        else:
            for settlement in part if self._lost or self._conflict_since else ():
                self._forget(settlement)
            if written is not None:
                yield written

    def _write_around(self, part: Sequence[Settlement], failed: ApplyFailed, brisk: bool) -> Iterator[Settled]:
        """Write the others, and the one whose `apply` failed alone; later, if it may succeed then."""
        blamed = failed.settlement
        may_succeed = self._may_succeed(failed)
        for others in _halves([settlement for settlement in part if settlement is not blamed]):
            yield from self._write(others, brisk)
        if may_succeed:
            self._blocked.append(blamed)
        elif len(part) > 1 and failed.fault is Fault.BUG:
            yield from self._write([blamed], brisk)
        else:
            yield from self._write_reduced(blamed, failed)

    def _may_succeed(self, failed: ApplyFailed) -> bool:
        """Whether something else may be to blame: another transaction, for a while; or, the first time, the database.

        The second time the database had answered the statements before it, on a fresh connection.
        """
        attempt, now = failed.settlement.job.attempt_id, self._now()
        if failed.fault is Fault.CONFLICT:
            return now - self._conflict_since.setdefault(attempt, now) < IN_THE_WAY_SECONDS
        is_first_loss = failed.fault is Fault.OUTAGE and attempt not in self._lost
        if is_first_loss:
            self._lost.add(attempt)
            _log_failure(failed.settlement, failed)
        return is_first_loss

    def _forget(self, settlement: Settlement) -> None:
        self._lost.discard(settlement.job.attempt_id)
        self._conflict_since.pop(settlement.job.attempt_id, None)

    def _settle(self, part: Sequence[Settlement], ledgers: Mapping[str, Ledger], brisk: bool) -> Settled | None:
        return self._outage.retry_until_available(
            lambda: settle(self._store, part, ledgers, now=self._now()),
            give_up=lambda: self.abandoned,
            passing=_faults_of(part),
            brisk=brisk,
            long_seconds=self._bound_seconds if len(part) > 1 else float("inf"),
        )

    def _write_reduced(self, settlement: Settlement, error: Exception) -> Iterator[Settled]:
        self._forget(settlement)
        for reduced, ledgers in self._reductions(settlement, error):
            _log_failure(settlement, error)
            try:
                written = self._settle([reduced], ledgers, brisk=True)
            except StoreConflict:
                self._blocked.append(settlement)
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
        self._unwritable.append(settlement)

    def _reductions(
        self, settlement: Settlement, error: Exception
    ) -> Iterator[tuple[Settlement, Mapping[str, Ledger]]]:
        """Versions of a settlement with ever fewer details, each with its ledgers."""
        if settlement.apply is None or not (isinstance(error, ApplyFailed) or fault_of(error) is Fault.LOST):
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
        words = str(cause) if isinstance(cause, ApplyOverdue | ConfigurationError) else class_name(cause)
        text = f"recording the outcome failed: {words}"
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


def _pieces(part: Sequence[Settlement], *, apart: bool) -> list[Sequence[Settlement]]:
    """Halves of a batch that failed; or each apart that runs code of the app."""
    applying = [[settlement] for settlement in part if settlement.apply is not None] if apart else []
    if not applying:
        return _halves(part)
    others = [settlement for settlement in part if settlement.apply is None]
    return [others, *applying] if others else [*applying]


def _halves(part: Sequence[Settlement]) -> list[Sequence[Settlement]]:
    middle = len(part) // 2
    return [half for half in (part[:middle], part[middle:]) if half]


def _faults_of(part: Sequence[Settlement]) -> Collection[Fault]:
    """Errors about one of these settlements. A missing table or privilege counts if an `apply` may have caused it."""
    about_one = {Fault.CONFLICT, Fault.DATA, Fault.LOST, Fault.BUG}
    foreign = any(settlement.apply is not None for settlement in part)
    return about_one | {Fault.SCHEMA, Fault.DENIED} if foreign else about_one


def parts(batch: Sequence[Settlement], applies_max: int = APPLIES_MAX) -> Iterator[list[Settlement]]:
    """The batch in its order, in pieces of which each is small enough for one statement and one transaction."""
    piece: list[Settlement] = []
    chars = applies = 0
    for settlement in batch:
        weight, applied = _weight(settlement), settlement.apply is not None
        if piece and (chars + weight > BATCH_CHARS_MAX or applies + applied > applies_max):
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
    if settlement.result is not None:
        chars += len(repr(settlement.result))
    return chars


def _bare(settlement: Settlement, error: Exception) -> Settlement:
    """The bare verdict, with the reason for the missing details."""
    text = f"the attempt's details could not be stored: {class_name(error)}"
    result = None if settlement.result is None else {"missing": text}
    return replace(settlement, detail=None, message=text, stack=None, error_type=None, error_text=None, result=result)


def _log_failure(settlement: Settlement, error: Exception) -> None:
    job, cause = settlement.job, error.__cause__ or error if isinstance(error, ApplyFailed) else error
    facts = {"job": job.id, "type": job.job_type, "error": class_name(cause), "at": error_places(cause)}
    _log.error("settle.failed", extra=facts)
