"""Retention of e-mail: old events, expired suppressions, counts and lines of the log are deleted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from effects import Effects
from effects.app.retention import prune as prune_all
from effects_email.events import IncomingEvent, SignedRequest, take
from effects_email.retention import delete_old_rows
from effects_email.suppression import SOFT_WINDOW_DAYS, note_failures, suppress
from effects_email.tables import retention as table
from effects_email.tables.ledger import AddressFailure
from tests.support.manual_workers import rows

DAY = 86_400.0
TABLES = ("email_events", "email_suppressions", "email_soft_failures", "email_suppression_log", "email_signed_requests")


def fill(app: Effects) -> None:
    shift = app.store.sql.shift_seconds
    incoming = [
        IncomingEvent(
            provider="resend", provider_event_id=f"{shift}-{number}", kind="accepted", code=None, reference=None,
            provider_id=None, recipient=None, at=None,
        )
        for number in range(3)
    ]  # fmt: skip
    take(app, incoming, request=SignedRequest(f"token of {shift}", "body"))
    suppress("for.ever@example.com", reason="complaint", effects=app)
    suppress("a.while@example.com", reason="soft_repeat", effects=app)
    with app.store.begin() as connection:
        note_failures(app, connection, [AddressFailure(address="a@b.example", kind="soft", code="x")], source="smtp")


def counts(app: Effects) -> list[int]:
    return [len(rows(app, name)) for name in TABLES]


def prune(app: Effects, *, dry_run: bool = False, go_on: Callable[[], bool] = lambda: True) -> int:
    return delete_old_rows(app.store, keep_seconds=90 * DAY, window_days=SOFT_WINDOW_DAYS, dry_run=dry_run, go_on=go_on)


# days since it was filled → events, suppressions, counts, log lines and tokens that are left
_AGES = [
    (0, [3, 2, 1, 2, 1]), (1.9, [3, 2, 1, 2, 1]), (2.1, [3, 2, 1, 2, 0]), (13, [3, 2, 1, 2, 0]),
    (15, [3, 1, 1, 2, 0]), (30, [3, 1, 1, 2, 0]), (32, [3, 1, 0, 2, 0]), (89, [3, 1, 0, 2, 0]), (91, [0, 1, 0, 2, 0]),
    (729, [0, 1, 0, 2, 0]), (731, [0, 1, 0, 0, 0]),
]  # fmt: skip


def test_each_kind_of_row_is_deleted_at_its_age(mail: Effects) -> None:
    fill(mail)
    now = 0.0
    for days, left in _AGES:
        mail.store.shift_clock((days - now) * DAY)
        now = days
        before = counts(mail)
        dry = prune(mail, dry_run=True)
        assert counts(mail) == before
        assert prune(mail) == dry == sum(before) - sum(left), days
        assert counts(mail) == left, days


def test_pages_follow_each_other_and_new_rows_stay(mail: Effects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "PAGE", 2)
    fill(mail)
    mail.store.shift_clock(100 * DAY)
    fill(mail)
    assert prune(mail, go_on=lambda: False) == 0
    assert prune(mail) == 3 + 1 + 1  # the old suppression was said again
    assert counts(mail) == [3, 2, 1, 4, 1]


def test_effects_prune_deletes_them_too(mail: Effects) -> None:
    fill(mail)
    mail.store.shift_clock(100 * DAY)
    assert prune_all(mail).packages["email.send"] == 6
