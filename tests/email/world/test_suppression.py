"""Who is not written to: reach, ends, spellings, the log, and what of an address is stored."""

from __future__ import annotations

import logging
import threading
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from effects import Effects, EnqueueError
from effects.store.rotate import count_keys, rotate
from effects_email.bounces import note_delivered, note_failures
from effects_email.message.address import address_digests, normal_form
from effects_email.record import AddressFailure
from effects_email.suppression import (
    find_suppressions,
    list_suppressions,
    note_override,
    suppress,
    suppressed,
    suppression_log,
    unsuppress,
)
from effects_email.suppression_rows import Reason
from tests.email.world.conftest import KEYS, NEWEST_KEYS, ROTATED_KEYS, MailFactory
from tests.support.manual_workers import rows
from tests.webhooks.conftest import statements

DAY = 86_400.0
ANN = "ann@example.com"


def why(app: Effects, address: str = ANN, category: str | None = None) -> Reason | None:
    with app.store.read() as connection:
        return suppressed(app, connection, [(address, category)])[0]


def fail(app: Effects, *failures: tuple[str, str]) -> None:
    with app.store.begin() as connection:
        note_failures(
            app, connection,
            [AddressFailure(address=address, kind=kind, code="smtp_550_5.1.1") for address, kind in failures],  # type: ignore[arg-type]
            source="smtp",
        )  # fmt: skip


def deliver(app: Effects, *addresses: str) -> None:
    with app.store.begin() as connection:
        note_delivered(app, connection, addresses, source="resend")


# -- reach and ends --------------------------------------------------------------------------------------------------

# reason, category it is said for → which categories it stops, and until when it holds
_REACH = [
    ("hard_bounce", None, {None: True, "news": True, "transactional": True}, 180),
    ("complaint", None, {None: True, "news": True, "transactional": True}, None),
    ("unsubscribe", "news", {None: False, "news": True, "transactional": False, "tips": False}, None),
    ("manual", None, {None: True, "news": True, "transactional": True}, None),
    ("manual", "news", {None: False, "news": True, "tips": False}, None),
    ("soft_repeat", None, {None: True, "news": True}, 14),
]


@pytest.mark.parametrize(("reason", "said_for", "stops", "days"), _REACH, ids=[str(row[:2]) for row in _REACH])
def test_each_reason_reaches_what_it_should_and_ends_when_it_should(
    mail: Effects, reason: Reason, said_for: str | None, stops: dict[str | None, bool], days: int | None
) -> None:
    suppress(ANN, category=said_for, reason=reason, effects=mail)
    asked = [(ANN, category) for category in stops]
    with mail.store.read() as connection:
        assert suppressed(mail, connection, asked) == [reason if stop else None for stop in stops.values()]
    stopped = next(category for category, stop in stops.items() if stop)
    mail.store.shift_clock((days or 3650) * DAY - 60)
    assert why(mail, ANN, stopped) == reason
    mail.store.shift_clock(120)
    assert why(mail, ANN, stopped) == (None if days else reason)
    assert len(list_suppressions(effects=mail)) == (0 if days else 1)


def test_an_end_may_be_set(mail: Effects) -> None:
    suppress(ANN, until=datetime.now(UTC) + timedelta(days=2), effects=mail)
    assert why(mail) == "manual"
    mail.store.shift_clock(2 * DAY + 60)
    assert why(mail) is None


def test_one_that_ends_takes_no_other_with_it(mail: Effects) -> None:
    suppress(ANN, reason="hard_bounce", effects=mail)
    suppress(ANN, reason="unsubscribe", category="news", effects=mail)
    suppress(ANN, reason="soft_repeat", effects=mail)
    assert why(mail, ANN, "news") == "hard_bounce"
    mail.store.shift_clock(200 * DAY)
    assert why(mail, ANN, "news") == "unsubscribe"
    assert why(mail) is None


def test_suppressing_again_replaces_the_end(mail: Effects) -> None:
    suppress(ANN, until=datetime.now(UTC) + timedelta(days=1), actor="cli:bo", effects=mail)
    suppress(ANN, actor="cli:cy", why="asked on the phone", effects=mail)
    found = find_suppressions(ANN, effects=mail)
    assert [(one.actor, one.why, one.until, one.address) for one in found] == [
        ("cli:cy", "asked on the phone", None, ANN)
    ]


def test_a_lifted_address_is_written_to_again(mail: Effects) -> None:
    suppress(ANN, reason="complaint", effects=mail)
    suppress(ANN, reason="unsubscribe", category="news", effects=mail)
    assert unsuppress(ANN, reason="complaint", actor="cli:bo", why="a mistake", effects=mail) == 1
    assert (why(mail), why(mail, ANN, "news")) == (None, "unsubscribe")
    assert unsuppress(ANN, effects=mail) == 1
    assert unsuppress(ANN, effects=mail) == 0
    assert why(mail, ANN, "news") is None
    assert [(one.action, one.reason, one.actor) for one in suppression_log(ANN, effects=mail)] == [
        ("lifted", "unsubscribe", "app"), ("lifted", "complaint", "cli:bo"),
        ("suppressed", "unsubscribe", "app"), ("suppressed", "complaint", "app"),
    ]  # fmt: skip


_REFUSED = [
    ({"address": "nobody"}, "local@domain"),
    ({"address": "a\n@example.com"}, "printable"),
    ({"address": ANN, "reason": "whim"}, "complaint, hard_bounce"),
    ({"address": ANN, "reason": "unsubscribe"}, "from a category"),
    ({"address": ANN, "reason": "unsubscribe", "category": "all"}, "from a category"),
    ({"address": ANN, "reason": "unsubscribe", "category": "transactional"}, "from a category"),
    ({"address": ANN, "reason": "complaint", "category": "news"}, "leave out the category"),
    ({"address": ANN, "category": ""}, "1 to 100"),
    ({"address": ANN, "until": datetime(2099, 1, 1)}, "time zone"),  # noqa: DTZ001
    ({"address": ANN, "why": "x" * 1001}, "1000"),
]


def test_what_cannot_be_is_refused_and_names_no_address(mail: Effects) -> None:
    for wrong, says in _REFUSED:
        with pytest.raises(EnqueueError, match=says) as refused:
            suppress(**wrong, effects=mail)  # type: ignore[arg-type]
        assert "ann" not in str(refused.value)
    assert rows(mail, "email_suppressions") == []


def test_it_holds_with_the_callers_commit_and_not_without(mail: Effects) -> None:
    connection = mail.engine.connect()
    suppress(ANN, session=connection, effects=mail)
    connection.rollback()
    assert why(mail) is None
    suppress(ANN, session=connection, effects=mail)
    connection.commit()
    connection.close()
    assert why(mail) == "manual"


# -- failures that add up -----------------------------------------------------------------------------------------


def test_a_hard_refusal_suppresses_at_once(mail: Effects) -> None:
    fail(mail, (ANN, "hard"), ("bo@example.com", "soft"), (ANN, "hard"))
    assert (why(mail), why(mail, "bo@example.com")) == ("hard_bounce", None)
    [found] = find_suppressions(ANN, effects=mail)
    assert (found.source, found.why) == ("smtp", "smtp_550_5.1.1")


# failures on each of the days → suppressed or not; five on three days within thirty
_SOFT = [
    ([5], False),
    ([4, 4], False),
    ([1, 1, 1], False),
    ([2, 1, 1], False),
    ([1, 1, 1, 1], False),
    ([2, 2, 1], True),
    ([1, 1, 3], True),
    ([1, 1, 1, 1, 1], True),
    ([3, *[0] * 14, 1, *[0] * 13, 1], True),  # the 30th day still sees the first
    ([3, *[0] * 14, 1, *[0] * 14, 1], False),  # the 31st does not
]


@pytest.mark.parametrize(("days", "holds"), _SOFT, ids=str)
def test_soft_failures_add_up_over_days(mail: Effects, days: list[int], holds: bool) -> None:
    for number, count in enumerate(days):
        if number:
            mail.store.shift_clock(DAY)
        fail(mail, *[(ANN, "soft")] * count)
    assert why(mail) == ("soft_repeat" if holds else None)


def test_a_delivery_ends_a_soft_repeat_and_resets_the_count(mail: Effects) -> None:
    suppress(ANN, reason="unsubscribe", category="news", effects=mail)
    for _ in range(3):
        fail(mail, (ANN, "soft"), (ANN, "soft"))
        mail.store.shift_clock(DAY)
    assert why(mail) == "soft_repeat"
    deliver(mail, "ANN@Example.com")
    assert (why(mail), why(mail, ANN, "news")) == (None, "unsubscribe")
    fail(mail, (ANN, "soft"))
    assert why(mail) is None
    assert [one.action for one in suppression_log(ANN, effects=mail)] == ["delivered", "suppressed", "suppressed"]


def test_a_delivery_does_not_undo_a_bounce(mail: Effects) -> None:
    fail(mail, (ANN, "hard"))
    deliver(mail, ANN)
    assert why(mail) == "hard_bounce"


def test_workers_that_fail_at_once_count_all_of_it(mail: Effects) -> None:
    names = [f"u{number}@example.com" for number in range(20)]
    orders = [names, names[::-1]] * 3
    threads = [threading.Thread(target=fail, args=(mail, *[(name, "soft") for name in order])) for order in orders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {row["failures"] for row in rows(mail, "email_soft_failures")} == {6}


# -- one statement -------------------------------------------------------------------------------------------------


def test_any_number_of_addresses_is_one_statement(mail: Effects) -> None:
    suppress(ANN, effects=mail)
    wanted = [(f"u{number}@example.com", "news") for number in range(500)] + [(ANN, None)]
    with statements(mail) as seen, mail.store.read() as connection:
        found = suppressed(mail, connection, wanted)
        assert suppressed(mail, connection, []) == []
    assert found == [None] * 500 + ["manual"]
    assert len([one for one in seen if "email_suppressions" in one]) == 1


# -- an override ---------------------------------------------------------------------------------------------------


def test_an_override_is_kept_with_who_and_why(mail: Effects) -> None:
    suppress(ANN, reason="complaint", effects=mail)
    with mail.store.begin() as connection:
        note_override(mail, connection, [ANN], actor="app", why="change of terms, § 9")
    newest = suppression_log(ANN, effects=mail)[0]
    assert (newest.action, newest.actor, newest.why) == ("overridden", "app", "change of terms, § 9")
    assert why(mail) == "complaint"


# -- how an address is stored ----------------------------------------------------------------------------------------

_SAME = [
    ("ANN@EXAMPLE.COM", ANN),
    ("  ann@example.com. ", ANN),
    ("a@bücher.example", "A@XN--BCHER-KVA.example"),
    ("a@Bu\u0308cher.example", "a@bücher.example"),
    ("jose\u0301@example.com", "JOSÉ@example.com"),
]


def test_spellings_of_one_address_are_one(mail: Effects) -> None:
    for one, other in _SAME:
        suppress(one, effects=mail)
        assert why(mail, other) == "manual"
        assert unsuppress(other, effects=mail) == 1


def test_neighbours_are_not_the_same() -> None:
    assert normal_form("ann+news@example.com") != normal_form(ANN)
    assert normal_form("an.n@example.com") != normal_form("ann@example.com")


@given(st.text(max_size=80))
def test_whatever_a_provider_sends_has_a_normal_form(text: str) -> None:
    once = normal_form(text)
    assert normal_form(once) == once


def test_the_address_is_stored_only_sealed(mail: Effects, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    suppress(ANN, reason="unsubscribe", category="news", effects=mail)
    fail(mail, (ANN, "hard"), (ANN, "soft"))
    found = find_suppressions(ANN, effects=mail)
    assert {one.address for one in found} == {ANN}
    kept = [rows(mail, table) for table in ("email_suppressions", "email_suppression_log", "email_soft_failures")]
    assert all(kept)
    assert "ann@" not in str(kept)
    assert ANN.encode() not in b"".join(bytes(row["sealed"]) for row in kept[0])
    assert all(row["digest"].startswith("hmac:") for table in kept for row in table)
    assert "ann@" not in caplog.text + repr(found)


def test_without_keys_it_works_in_clear_and_keys_may_come_later(mail_factory: MailFactory) -> None:
    bare = mail_factory(keys="")
    suppress(ANN, effects=bare)
    assert [one.address for one in list_suppressions(effects=bare)] == [ANN]
    keyed = mail_factory()
    assert why(keyed) == "manual"
    suppress(ANN, reason="complaint", effects=keyed)
    assert len(address_digests(keyed, ANN)) == 2
    assert [one.reason for one in find_suppressions(ANN, effects=keyed)] == ["manual", "complaint"]
    assert unsuppress(ANN, effects=keyed) == 2


def test_rotation_seals_them_again(mail_factory: MailFactory) -> None:
    suppress(ANN, effects=mail_factory(KEYS))
    suppress(ANN, category="news", effects=mail_factory(KEYS))
    suppress(ANN, category="news", effects=mail_factory(ROTATED_KEYS))  # written again under the new key
    newer = mail_factory(ROTATED_KEYS)
    result = rotate(newer.store, newer.keys, actor="ann")
    assert (result.rotated, result.left, result.unreadable) == (1, [], [])
    after = mail_factory(NEWEST_KEYS)
    assert [(one.place, one.key_id, one.values) for one in count_keys(after.store)] == [
        ("email_suppressions", "new", 2)
    ]
    assert [one.address for one in find_suppressions(ANN, effects=after)] == [ANN, ANN]


def test_a_key_that_is_gone_hides_the_text_and_nothing_else(mail_factory: MailFactory) -> None:
    suppress(ANN, effects=mail_factory(KEYS))
    after = mail_factory(NEWEST_KEYS)
    assert why(after) == "manual"
    assert [one.address for one in list_suppressions(effects=after)] == [None]
