"""Odd values in each argument of each public call: taken, or refused in words before the database sees them."""

from __future__ import annotations

import enum
import inspect
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from markupsafe import Markup
from sqlalchemy import text
from sqlalchemy.orm import Session

import effects
import effects_email
import effects_reports
import effects_webhooks
from effects import (
    Alert,
    ConfigurationError,
    DeadLetters,
    Effects,
    EffectsError,
    EffectsOptions,
    RetryPolicy,
    Schedule,
    StoreRejected,
    StoreUnavailable,
)
from effects_webhooks import EventType, WebhookEvent
from tests.mistakes.odd_calls import JULY, Call, build_app, calls
from tests.support.sampling import sample

# Of the public functions: what only computes, declares or serves, and says by a TypeError what it was called with.
WITHOUT_A_CALL = {
    effects.default, effects.generate_key, effects.set_default,
    effects_email.escape_markdown, effects_reports.download_app, effects_reports.file_report, effects_reports.report,
    effects_reports.sql_report, effects_reports.workbook_report, effects_reports.open_result,
    effects_reports.repair_reports,
    effects_reports.rewind_report, effects_webhooks.delivery_key, effects_webhooks.generate_secret,
    effects_webhooks.sign, effects_webhooks.verify,
}  # fmt: skip
# The first two have tests of their own, `payload` stands for any name.
UNCHECKED = {"effects", "session", "progress", "where", "payload"}
VALUES_FOR_EACH = 6


class Text(str):
    """A text that is of no built-in class, as a form's values may be."""


class Number(int):
    pass


class Word(str, enum.Enum):  # noqa: UP042 - it is another one
    A = "a"


class NewWord(enum.StrEnum):
    A = "a"


def odd_values() -> list[Any]:
    return [
        None, "", " ", "a", Text("a"), Markup("a"), Word.A, NewWord.A, "a\nb", "é", "\0", "\ud800", "\u202e",
        "a" * 10_000, "a@@" + "," * 300_000, "1" * 9_999, "²", b"a", bytearray(b"a"), 0, 1, -1, Number(3), 2**63,
        10**30, -(10**30), 1.5, math.nan, math.inf, True, Decimal("1.5"), [], ["a"], [None], (), {}, {"a": 1}, {1: 2},
        set(), frozenset("a"), iter("a"), object(), len, type, ValueError("a"), Path("odd"), UUID(int=1),
        date(2026, 7, 1), JULY, JULY.replace(tzinfo=None), datetime.max.replace(tzinfo=UTC),
        datetime.min.replace(tzinfo=UTC), timedelta(seconds=1), timedelta.max,
    ]  # fmt: skip


@pytest.fixture
def app(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Effects]:
    monkeypatch.chdir(tmp_path)
    app = build_app(tmp_path, database_url)
    yield app
    app.dispose()


@dataclass
class Trials:
    """Calls with one odd argument each, every one in a transaction of its own that is rolled back."""

    app: Effects

    def outcome(self, call: Call, **odd: Any) -> Exception | None:
        """The error that the call raised, or None. The transaction is usable after either."""
        parameters = inspect.signature(call.function).parameters
        with self._session() as session:
            places = {"effects": self.app, "session": session}
            own = {name: value for name, value in places.items() if name in parameters}
            try:
                call.function(**{**call.arguments, **own, **odd})
            except Exception as error:
                session.execute(text("SELECT 1"))
                return error
            session.execute(text("SELECT 1"))
            return None

    @contextmanager
    def _session(self) -> Iterator[Session]:
        with Session(self.app.engine) as session:
            yield session
            session.rollback()


def is_of_ours(error: Exception | None) -> bool:
    return error is None or (
        isinstance(error, EffectsError) and not isinstance(error, (StoreRejected, StoreUnavailable))
    )


def test_odd_arguments_are_taken_or_refused_in_words(app: Effects) -> None:
    trials, refused = Trials(app), 0
    faults: list[str] = []
    for call in calls(app):
        assert trials.outcome(call) is None, call.name
        for name in call.arguments:
            for value in sample(odd_values(), VALUES_FOR_EACH):
                error = trials.outcome(call, **{name: value})
                refused += error is not None
                if not is_of_ours(error):
                    faults.append(f"{call.name}({name}={value!r:.40}): {error!r:.200}")
    assert faults == []
    assert refused > 100


def test_every_argument_of_every_public_call_is_tried(app: Effects) -> None:
    """A call that is new joins the table, or is named above."""
    tried = {call.function: {*call.arguments, *UNCHECKED} for call in calls(app)}
    for module in (effects, effects_email, effects_reports, effects_webhooks):
        for name in module.__all__:
            function = getattr(module, name)
            if not inspect.isfunction(function) or name.endswith("_async") or function in WITHOUT_A_CALL:
                continue
            assert function in tried, name
            assert set(inspect.signature(function).parameters) - tried[function] == set(), name


DECLARED: list[tuple[Any, dict[str, Any]]] = [
    (Alert, {"name": "a", "rule": DeadLetters(), "notify": "scripted"}),
    (EventType, {"name": "order.paid", "example": {}, "description": "a payment"}),
    (RetryPolicy, {}),
    (Schedule, {"name": "s", "job_type": "scripted", "payload": {}, "cron": "0 2 * * *", "key": None}),
    (WebhookEvent, {"type": "order.paid", "data": {}, "key": "k"}),
]


@pytest.mark.parametrize(("kind", "own"), DECLARED, ids=[kind.__name__ for kind, _ in DECLARED])
def test_odd_values_of_a_declaration(kind: Any, own: dict[str, Any]) -> None:
    for name in inspect.signature(kind).parameters:
        for value in odd_values():
            try:
                kind(**{**own, name: value})
            except EffectsError:
                continue


def test_odd_options_of_an_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flag is no text: `"false"` would be true."""
    monkeypatch.chdir(tmp_path)
    names = [*inspect.signature(Effects).parameters, *EffectsOptions.__annotations__]
    for name in [name for name in names if name not in ("options", "engine")]:
        for value in sample(odd_values(), VALUES_FOR_EACH):
            options = {"database_url": f"sqlite:///{tmp_path}/x.db", name: value}
            try:
                Effects(**options).dispose()
            except EffectsError:
                continue
    with pytest.raises(ConfigurationError, match="ALLOW_PRIVATE_ADDRESSES is a str; give True or False"):
        Effects(allow_private_addresses="false")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="queues is an int; give a list of str"):
        Effects(queues=5)  # type: ignore[arg-type]
