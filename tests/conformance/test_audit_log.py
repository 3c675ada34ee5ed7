"""The audit log: an entry is written with its action, listed by who, what and when, and deleted two years later."""

from __future__ import annotations

from typing import Any

import pytest

from effects import ConfigurationError, Effects
from effects.app.retention import prune
from effects.operate.tables.actions import LogFilters, list_entries
from effects.store.audit_log import AuditAction, note, note_all
from effects.store.db.sql import Window
from tests.conftest import AppFactory
from tests.support.manual_workers import row, rows, run_sql

DAY = 86_400.0
PAUSE, RESUME = AuditAction("limit", "pause"), AuditAction("limit", "resume")


@pytest.fixture
def app(app_factory: AppFactory) -> Effects:
    return app_factory(job_types=[])


def write(
    app: Effects, action: AuditAction, subject: str | int, *, actor: str = "cli:ann", reason: str | None = None,
    **detail: Any,
) -> None:  # fmt: skip
    with app.store.begin() as connection:
        note(app.store, connection, action, subject, actor=actor, reason=reason, detail=detail)


def listed(app: Effects, **filters: Any) -> list[str]:
    return [entry.subject for entry in list_entries(app.store, LogFilters(**filters))]


def test_an_entry_records_actor_action_subject_and_reason(app: Effects) -> None:
    write(app, PAUSE, "smtp", reason="their release", seconds=900)
    [entry] = list_entries(app.store, LogFilters())
    assert (entry.actor, entry.via, entry.subject_kind, entry.subject, entry.action, entry.reason, entry.detail) == (
        "cli:ann", "cli", "limit", "smtp", "pause", "their release", {"seconds": 900},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("actor", "via"),
    [("cli:ann", "cli"), ("web:ann", "web"), ("schedule:nightly", "schedule"), ("ann", "api"), ("other:ann", "api")],
)
def test_the_actor_names_the_channel(app: Effects, actor: str, via: str) -> None:
    write(app, PAUSE, "smtp", actor=actor)
    assert row(app, "audit_log")["via"] == via


@pytest.mark.parametrize("actor", ["", "  "])
def test_an_action_without_an_actor_is_refused(app: Effects, actor: str) -> None:
    with pytest.raises(ConfigurationError, match="actor is empty"):
        write(app, PAUSE, "smtp", actor=actor)


def test_many_entries_are_written_in_one_statement(app: Effects) -> None:
    with app.store.begin() as connection:
        note_all(app.store, connection, PAUSE, {17: {"new_job": 18}, 19: {}}, actor="ann", reason="a flood")
        note_all(app.store, connection, PAUSE, {}, actor="ann", reason="nothing was left")
    entries = list_entries(app.store, LogFilters())
    assert [(entry.subject, entry.detail, entry.reason) for entry in entries] == [
        ("19", {}, "a flood"),
        ("17", {"new_job": 18}, "a flood"),
    ]


def test_what_is_rolled_back_is_not_noted(app: Effects) -> None:
    with app.store.begin() as connection:
        note(app.store, connection, PAUSE, "smtp", actor="ann", reason=None)
        connection.rollback()
    assert rows(app, "audit_log") == []


def test_texts_and_details_are_bounded_and_storable(app: Effects) -> None:
    write(app, PAUSE, "k\0" + "k" * 300, actor="a" * 300, reason="r\0" * 2000, lone="\ud800", nul="\0")
    write(app, PAUSE, "large", texts=["x" * 4000] * 3)
    large, bounded = list_entries(app.store, LogFilters())
    assert (len(bounded.subject), len(bounded.actor), len(bounded.reason or "")) == (255, 255, 1000)
    assert bounded.detail == {"lone": "?", "nul": "\ufffd"}
    assert list(large.detail) == ["dropped"]


FILTERS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "all": ({}, ["4", "b", "a", "a"]),
    "actor": ({"actor": "cli:bo"}, ["b"]),
    "action": ({"action": "pause"}, ["b", "a"]),
    "kind": ({"subject_kind": "limit"}, ["b", "a", "a"]),
    "subject": ({"subject_kind": "limit", "subject": "a"}, ["a", "a"]),
    "actor and action": ({"actor": "cli:ann", "action": "pause"}, ["a"]),
    "no match": ({"actor": "nobody"}, []),
    "limit": ({"limit": 2}, ["4", "b"]),
    "newer": ({"window": Window(newer=1.5 * DAY)}, ["4", "b"]),
    "older": ({"window": Window(older=1.5 * DAY)}, ["a", "a"]),
    "actor, older": ({"actor": "cli:bo", "window": Window(older=1.5 * DAY)}, []),
}


@pytest.fixture
def four_entries(app: Effects) -> Effects:
    write(app, PAUSE, "a")
    write(app, RESUME, "a")
    app.store.shift_clock(2 * DAY)
    write(app, PAUSE, "b", actor="cli:bo")
    write(app, AuditAction("job", "cancel"), 4)
    return app


@pytest.mark.parametrize("name", FILTERS)
def test_the_list_is_filtered(four_entries: Effects, name: str) -> None:
    filters, subjects = FILTERS[name]
    assert listed(four_entries, **filters) == subjects


def test_the_list_is_bounded_by_times(four_entries: Effects) -> None:
    newest, _, _, oldest = list_entries(four_entries.store, LogFilters())
    assert not isinstance(newest.created_at, str)
    assert not isinstance(oldest.created_at, str)
    assert listed(four_entries, window=Window(until=oldest.created_at)) == []
    assert listed(four_entries, window=Window(since=oldest.created_at)) == ["4", "b", "a", "a"]
    since, until = oldest.created_at, newest.created_at
    assert "4" not in listed(four_entries, window=Window(since=since, until=until))


def test_pages_follow_each_other_by_id(four_entries: Effects) -> None:
    subjects: list[str] = []
    before = None
    while page := list_entries(four_entries.store, LogFilters(limit=3, before=before)):
        subjects += [entry.subject for entry in page]
        before = page[-1].id
    assert subjects == ["4", "b", "a", "a"]


def test_pages_by_time_have_every_entry_once_whatever_the_order_of_the_ids(four_entries: Effects) -> None:
    """A clock that was set back, or transactions that overlapped, leave a greater id with an earlier time."""
    hour = four_entries.store.sql.after("-3600")
    run_sql(four_entries, f"UPDATE effects_audit_log SET created_at = {hour} WHERE subject = '4'")
    subjects: list[str] = []
    before = None
    window = Window(newer=100 * DAY)
    while page := list_entries(four_entries.store, LogFilters(limit=1, before=before, window=window)):
        subjects += [entry.subject for entry in page]
        before = page[-1].id
    assert subjects == ["b", "4", "a", "a"]


def test_entries_are_kept_for_two_years(app: Effects) -> None:
    write(app, PAUSE, "old")
    app.store.shift_clock(DAY)
    write(app, PAUSE, "new")
    app.store.shift_clock(728.9 * DAY)
    assert prune(app).audit_log == 0
    app.store.shift_clock(0.2 * DAY)
    assert prune(app, dry_run=True).audit_log == 1
    assert prune(app).audit_log == 1
    assert listed(app) == ["new"]


def test_how_long_entries_are_kept_is_a_setting(app_factory: AppFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EFFECTS_RETENTION_AUDIT_DAYS", "3")
    app = app_factory(job_types=[])
    write(app, PAUSE, "old")
    app.store.shift_clock(3.1 * DAY)
    assert prune(app).audit_log == 1


@pytest.mark.parametrize("values", ["'', 'cli', 'pause', 'limit', 'k'", "'ann', 'telepathy', 'pause', 'limit', 'k'"])
def test_a_row_without_actor_or_channel_is_refused(app: Effects, values: str) -> None:
    with pytest.raises(Exception, match="ck_effects_audit_log"):
        run_sql(app, f"INSERT INTO effects_audit_log (actor, via, action, subject_kind, subject) VALUES ({values})")
