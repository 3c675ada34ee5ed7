"""What a person may do next, and what an answer means, as data: text, JSON and pages render it."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

Confirmation: TypeAlias = Literal["even_if_unknown", "even_if_done"]


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a person may do now.

    Args:
        name: such as `requeue`, `cancel`, `mark-done`.
        command: the command line, which works as it stands; with `needs_reason`, after REASON is replaced.
        confirmation: what the person must have agreed to, and the command says: an effect that may have happened, or
            is done, is carried out once more. None: nothing to confirm.
        needs_reason: it is refused without a reason.
    """

    name: str
    command: str
    confirmation: Confirmation | None = None
    needs_reason: bool = False


class Instead(msgspec.Struct, frozen=True, kw_only=True):
    """What a job type advises in place of a plain requeue.

    Args:
        text: one clause, which names the commands.
        actions: the same as data.
    """

    text: str
    actions: tuple[Action, ...] = ()


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """What the last answer means in the package's own terms, and what follows from it; one clause each."""

    meaning: str
    follows: str
