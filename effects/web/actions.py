"""An action on what has a name: a page that says what will happen and asks why, and a button that does it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias
from urllib.parse import urlencode

from effects.errors import EnqueueError
from effects.web import failures
from effects.web.exchange import PageAnswer
from effects.web.rendering import Exact
from effects.web.routes import View
from effects.web.security import Role
from effects.web.views.paging import sent_of
from effects.web.visit import Visit

RunAction: TypeAlias = "Callable[[ActionCall], ActionEnd | None]"


@dataclass(frozen=True, slots=True)
class ActionField:
    """A further question of an action's form.

    Args:
        kind: `choice` of one of `choices`, of which the first is the default; or `tick`, which is `yes` or left out.
        role: the least role that may give another answer than the default; others are not asked.
    """

    name: str
    label: str
    kind: Literal["choice", "tick"]
    choices: tuple[str, ...] = ()
    role: Role = "operator"

    @property
    def default(self) -> str:
        return self.choices[0] if self.kind == "choice" else ""

    @property
    def answers(self) -> tuple[str, ...]:
        """What a form may have."""
        return self.choices if self.kind == "choice" else ("", "yes")


@dataclass(frozen=True, slots=True)
class ActionCall:
    """What a person has asked for.

    Args:
        subject: what the action is about, as its form has it: it may hold any character.
        reason: why, for the audit log; None where none was given.
        fields: the answers to the further questions, each one of its choices.
    """

    visit: Visit
    subject: str
    reason: str | None
    fields: Mapping[str, str]

    @property
    def actor(self) -> str:
        return self.visit.someone.actor


@dataclass(frozen=True, slots=True)
class ActionEnd:
    """Where an action leads to: default to where it came from.

    Args:
        count: how many, for `{n}` in its notice.
        answer: a page that is shown once, in place of leading somewhere.
    """

    url: str | None = None
    count: int | None = None
    answer: PageAnswer | None = None


@dataclass(frozen=True, slots=True)
class PageAction:
    """One action on what has a name.

    Args:
        name: of its route, and in addresses.
        pattern: of its route; what it is about is the query's or the form's `name`.
        noun: what is named, such as `queue`.
        button: what the person presses; an imperative.
        consequence: what will happen, in a sentence or two.
        notice: what is said once it is done; `{n}` is the count of its `ActionEnd`.
        run: does it, in its own transaction that notes it in the audit log.
        back: the address of the page that it belongs to.
        needs_reason: it is refused without a reason.
        danger: whether an effect may be made twice, or waiting ones are lost.
        preview: what it would concern now, in a sentence. Default: nothing is said.
    """

    name: str
    pattern: str
    noun: str
    role: Role
    button: str
    consequence: str
    notice: str
    run: RunAction
    back: Callable[[Visit, str], str]
    fields: tuple[ActionField, ...] = ()
    needs_reason: bool = False
    danger: bool = False
    preview: Callable[[Visit, str], str] | None = None


def page_action_view(action: PageAction) -> View:
    """The page that asks, and by POST does it."""

    def view(visit: Visit) -> PageAnswer:
        fields = visit.form if visit.request.is_unsafe else visit.query
        name = sent_of(fields, "name")
        if name is None:
            raise EnqueueError(f"the name of the {action.noun} is missing")
        return _act(visit, action, name) if visit.request.is_unsafe else _ask(visit, action, name)

    return view


def _ask(visit: Visit, action: PageAction, name: str) -> PageAnswer:
    return visit.page(
        "confirm.html", action=action, heading=f"{action.button}: {action.noun} {name}",
        sentence=action.preview(visit, name) if action.preview is not None else None,
        consequence=action.consequence, target=visit.url(action.name), back=action.back(visit, Exact(name)),
        hidden={"name": name}, fields=[field for field in action.fields if visit.someone.may(field.role)],
    )  # fmt: skip


def _act(visit: Visit, action: PageAction, name: str) -> PageAnswer:
    reason, answers = visit.reason(needed=action.needs_reason), _answers(visit, action)
    route = visit.site.routes.by_name[action.name]
    for field in action.fields:
        if answers[field.name] != field.default and not visit.someone.may(field.role):
            return failures.forbidden(visit, route, f"{field.label}: this needs the role {field.role}")
    with visit.acting():
        end = action.run(ActionCall(visit, name, reason, answers)) or ActionEnd()
    if end.answer is not None:
        return end.answer
    return visit.lead_to(_with_notice(end.url or action.back(visit, Exact(name)), action.name, end.count))


def _answers(visit: Visit, action: PageAction) -> dict[str, str]:
    answers = {field.name: visit.form.get(field.name, field.default) for field in action.fields}
    for field in action.fields:
        if answers[field.name] not in field.answers:
            raise EnqueueError(f"{field.label}: there is no such answer")
    return answers


def _with_notice(url: str, name: str, count: int | None) -> str:
    query = urlencode({"did": name, **({} if count is None else {"n": count})})
    address, mark, anchor = url.partition("#")
    return f"{address}{'&' if '?' in address else '?'}{query}{mark}{anchor}"
