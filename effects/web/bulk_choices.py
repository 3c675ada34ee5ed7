"""What may be done with all jobs of a list at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from effects.store.bulk.operation import ActionName, BulkAction
from effects.store.operator.dead_letters import DeadFilters


@dataclass(frozen=True, slots=True)
class BulkChoice:
    """An action that a list offers on all its jobs.

    Args:
        ticked: the button for rows that are ticked.
        statuses: of the jobs of the list; empty: it has no statuses.
        unknown: whether it is about effects that may have happened, about others, or (None) about either.
    """

    name: ActionName
    button: str
    ticked: str
    consequence: str
    statuses: Sequence[str] = ()
    unknown: bool | None = None
    danger: bool = False
    even_if_unknown: bool = False

    @property
    def action(self) -> BulkAction:
        return BulkAction(self.name, even_if_unknown=self.even_if_unknown)


_AGAIN = "Each becomes a new job, which carries the effect out. What is done, or may have happened, is left as it is."
OF_NEEDS = (
    BulkChoice("requeue", "Requeue all", "Requeue", _AGAIN, unknown=False),
    BulkChoice("ignore", "Ignore all", "Ignore", "Each is resolved without an action: the effects are not made.",
               unknown=False, danger=True),
    BulkChoice("mark_done", "All of them happened", "They happened", "Each effect is recorded as done, on your word.",
               unknown=True, danger=True),
    BulkChoice("give_up", "Leave all unknown", "Leave unknown", "Each effect stays unknown forever, and nothing tries "
               "it again.", unknown=True, danger=True),
    BulkChoice("resolve_requeue", "Try all again", "Try again", "Each becomes a new job. Effects that have happened "
               "already happen twice.", unknown=True, danger=True),
)  # fmt: skip
OF_JOBS = (
    BulkChoice("requeue", "Requeue all", "Requeue", _AGAIN, statuses=("dead", "cancelled")),
    BulkChoice("run_now", "Run all now", "Run now", "Each falls due at once. Pauses, limits and groups still hold.",
               statuses=("queued", "retrying")),
    BulkChoice("cancel", "Cancel all", "Cancel", "Waiting jobs end at once, and their effects are not made. Running "
               "ones are not interrupted, and not tried again.",
               statuses=("queued", "running", "retrying"), danger=True),
)  # fmt: skip


def choices_of_needs(filters: DeadFilters) -> list[BulkChoice]:
    """What may be done with all of them: a decision needs effects of one kind."""
    return [choice for choice in OF_NEEDS if filters.unknown is not None and choice.unknown == filters.unknown]


def ticked_choices_of_needs(filters: DeadFilters) -> list[BulkChoice]:
    """What may be done with rows that are ticked; where effects of both kinds are shown, what they have in common."""
    return [choice for choice in OF_NEEDS if choice.unknown == bool(filters.unknown)]


def choices_of_jobs(status: str | None) -> list[BulkChoice]:
    """What may be done with all jobs of this status."""
    return [choice for choice in OF_JOBS if status in choice.statuses]
