"""One action on one job, as a person would do it alone: the same functions, the same guard, the same records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from effects.errors import JobNotFound, JobStateError, code_of
from effects.model.ledger import Ledger
from effects.model.registry import Registry
from effects.store.db.store import Store
from effects.store.operator import actions
from effects.store.operator.requeue import requeue
from effects.store.operator.resolve import Resolution, ignore, resolve

ActionName: TypeAlias = Literal["requeue", "ignore", "resolve_requeue", "mark_done", "give_up", "cancel", "run_now"]

_RESOLUTIONS: Mapping[str, Resolution] = {
    "resolve_requeue": "requeue", "mark_done": "mark-done", "give_up": "give-up"
}  # fmt: skip
NOT_FOUND, REJECTED = "not_found", "rejected"


class BulkAction(msgspec.Struct, frozen=True):
    """What to do with each job.

    Args:
        name: `resolve_requeue` decides about an unknown effect; `requeue` refuses one.
        even_if_unknown: requeue although the effect may have happened.
        even_if_done: requeue although the effect is done.
    """

    name: ActionName
    even_if_unknown: bool = False
    even_if_done: bool = False


class ActedOn(msgspec.Struct, frozen=True):
    """What was done to a job: the new job of a requeue, and the queue whose workers should hear of it."""

    new_id: int | None = None
    queue: str | None = None


class InlineResult(msgspec.Struct, frozen=True):
    """What was done at once: job id → the new job of a requeue, else None; and job id → why it was refused."""

    done: dict[int, int | None]
    refused: dict[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An action by a person, for a reason, on jobs that are yet to be named."""

    store: Store
    job_types: Registry
    ledgers: Mapping[str, Ledger]
    action: BulkAction
    actor: str
    reason: str | None = None
    bulk_id: int | None = None

    def act(self, job_id: int, connection: Connection | None = None) -> ActedOn:
        """Act on one job; in the caller's transaction, if there is one.

        Raises:
            JobNotFound, JobStateError: it is refused, and nothing was written.
        """
        store, name, actor, reason, bulk_id = self.store, self.action.name, self.actor, self.reason, self.bulk_id
        if name == "requeue":
            requeued = requeue(
                store, self.job_types, job_id, confirm_unknown=self.action.even_if_unknown,
                confirm_done=self.action.even_if_done, actor=actor, reason=reason, bulk_id=bulk_id,
                connection=connection,
            )  # fmt: skip
            return ActedOn(requeued.job_id, requeued.queue)
        if name == "cancel":
            actions.cancel(
                store, self.ledgers, job_id, actor=actor, reason=reason, bulk_id=bulk_id, connection=connection
            )
            return ActedOn()
        if name == "run_now":
            queue = actions.run_now(store, job_id, actor=actor, reason=reason, bulk_id=bulk_id, connection=connection)
            return ActedOn(queue=queue)
        return self._resolve(job_id, connection)

    def _resolve(self, job_id: int, connection: Connection | None) -> ActedOn:
        name, actor, bulk_id = self.action.name, self.actor, self.bulk_id
        if name == "ignore":
            ignore(
                self.store, self.ledgers, job_id, actor=actor, reason=self.reason or "", bulk_id=bulk_id,
                connection=connection,
            )  # fmt: skip
            return ActedOn()
        requeued = resolve(
            self.store, self.job_types, self.ledgers, job_id, _RESOLUTIONS[name], actor=actor, reason=self.reason,
            bulk_id=bulk_id, connection=connection,
        )  # fmt: skip
        return ActedOn() if requeued is None else ActedOn(requeued.job_id, requeued.queue)


def act_inline(operation: Operation, job_ids: Sequence[int]) -> tuple[InlineResult, set[str]]:
    """Act on each job in its own transaction. Jobs that changed meanwhile are refused, and the others continue.

    Returns:
        The result, and the queues whose workers should hear of it.
    """
    done: dict[int, int | None] = {}
    refused: dict[int, str] = {}
    queues: set[str] = set()
    for job_id in job_ids:
        try:
            acted = operation.act(job_id)
        except (JobNotFound, JobStateError) as error:
            refused[job_id] = str(error)
        except DBAPIError:  # about its row: all others are translated
            refused[job_id] = f"job {job_id}: the database refuses it"
        else:
            done[job_id] = acted.new_id
            queues.update({acted.queue} if acted.queue is not None else ())
    return InlineResult(done, refused), queues


def refusal_code(error: JobNotFound | JobStateError) -> str:
    """Why a job was refused, in a word that is the same for every such job."""
    return NOT_FOUND if isinstance(error, JobNotFound) else code_of(error)
