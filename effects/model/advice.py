"""What a person may do next, as data that text, JSON and pages render; whether an ended job may run again.

Pure: `requeue` asks it under locks, `effects why` for its advice.
"""

from __future__ import annotations

import shlex
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from effects.model.job import ENDED

Level: TypeAlias = Literal["ok", "warning", "error"]
Confirmation: TypeAlias = Literal["even_if_unknown", "even_if_done"]
EffectState: TypeAlias = Literal["done", "unknown", "not_done", "elsewhere", "shared"]


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


class DoctorFinding(msgspec.Struct, frozen=True):
    """One check's result. `advice` is what to do, or None; `about` the id of what it concerns, if that has a page."""

    check: str
    level: Level
    text: str
    advice: str | None = None
    about: str | None = None


def ended_only(job_id: int) -> str:
    """The rule that a live job breaks, and what may be meant."""
    return f"only an ended job can be retried (what this one waits for: `effects why {job_id}`)"


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """All that decides whether a job may be requeued.

    Args:
        status: of the job's own row, live or ended.
        effect: what became of the effect over all jobs that tried it: done (a person's word counts), unknown, not
            done; `elsewhere`, where this job no longer holds the effect's key; `shared`, where many jobs make it.
        repeats: the policy of the job, else of its type, is `repeat`: the peer knows a second sending for the same.
        registered: this process knows the job type. Without it, its policy and its ledger are not known.
        successor: the newest job that was requeued from this one, and its status.
        closed_by: its last resolution (`ignore`, `mark_done`, `give_up`), if any.
        instead: what its job type advises in place of a plain requeue (`JobType.instead_of_requeue`).
    """

    job_id: int
    job_type: str
    status: str
    effect: EffectState
    key: str | None = None
    repeats: bool = False
    registered: bool = True
    successor: tuple[int, str] | None = None
    closed_by: str | None = None
    instead: Instead | None = None

    @property
    def ended(self) -> bool:
        return self.status in ENDED


class Objection(NamedTuple):
    """Why a job must not be requeued: in a word, which is the same for every such job, and in a sentence."""

    code: str
    text: str


def objection(standing: Standing, *, confirm_unknown: bool = False, confirm_done: bool = False) -> Objection | None:
    """Why this job must not be requeued; None where it may be. The whole guard, and pure."""
    who = f"job {standing.job_id}"
    if not standing.ended:
        return Objection(standing.status, f"{who} is {standing.status}: {ended_only(standing.job_id)}")
    if standing.successor is not None:
        newer, status = standing.successor
        return Objection("requeued_already", f"{who} was retried already: job {newer} is {status}")
    if standing.effect == "shared":
        advice = f": {standing.instead.text}" if standing.instead else ""
        return Objection("shared_effect", f"{who} is one of many that make its effect{advice}")
    if standing.effect == "elsewhere":
        return _objection_elsewhere(standing)
    if standing.effect == "done" and not confirm_done:
        return Objection("effect_done", f"the effect of {who} is done; only --even-if-done makes it once more")
    if standing.effect == "unknown" and not (confirm_unknown or standing.repeats):
        return Objection("effect_unknown", f"the effect of {who} may have happened{_decision(standing)}")
    return None


def _decision(standing: Standing) -> str:
    retry = f"`effects retry {standing.job_id} --even-if-done`"
    if standing.closed_by is not None:
        return f", and it is resolved: {retry} makes it anyway, perhaps a second time"
    done = f"`effects resolve {standing.job_id} --as done`"
    return f": {retry} makes it, perhaps a second time; if you know that it happened, {done}"


def _objection_elsewhere(standing: Standing) -> Objection:
    who = f"job {standing.job_id}"
    if not standing.registered:
        text = f"{who} is of the job type {standing.job_type!r}, which is not registered here: pass its app with --app"
        return Objection("not_registered", text)
    key = standing.key or ""
    text = f"{who} no longer holds the key {key!r}: a newer job does (see `effects why {shlex.quote(key)}`)"
    return Objection("key_moved", text)
