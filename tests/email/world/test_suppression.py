"""Who is not written to: reach, ends, spellings, the log, and what of an address is stored."""

from __future__ import annotations

import logging
import threading
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from effects import Effects, EnqueueError
from effects.operate.tables.rotate import count_keys, rotate
from effects_email.message.address import address_digests, normal_form
from effects_email.suppression import (
    Reason,
    find_suppressions,
    list_suppressions,
    note_delivered,
    note_failures,
    note_override,
    suppress,
    suppressed,
    suppression_log,
    unsuppress,
)
from effects_email.tables.ledger import AddressFailure
from tests.email.world.conftest import KEYS, NEWEST_KEYS, OLD, ROTATED_KEYS, MailFactory
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
def test_each_reason_has_its_scope_and_its_end(
    mail: Effects, reason: Reason, said_for: str | None, stops: dict[str | None, bool], days: int | None
) -> None:
    suppress(ANN, category=said_for, reason=reason, effects=mail)
    pairs = [(ANN, category) for category in stops]
    with mail.store.read() as connection:
        assert suppressed(mail, connection, pairs) == [reason if stop else None for stop in stops.values()]
    stopped = next(category for category, stop in stops.items() if stop)
    mail.store.shift_clock((days or 3650) * DAY - 60)
    assert why(mail, ANN, stopped) == reason
    mail.store.shift_clock(120)
    assert why(mail, ANN, stopped) == (None if days else reason)
    assert len(list_suppressions(effects=mail)) == (0 if days else 1)


def test_unsubscribes_alone_may_be_lifted(mail: Effects) -> None:
    for category in ("news", "tips"):
        suppress(ANN, category=category, reason="unsubscribe", effects=mail)
    suppress(ANN, category="news", effects=mail)
    assert unsuppress(ANN, category="news", reason="unsubscribe", effects=mail) == 1
    assert (why(mail, ANN, "news"), why(mail, ANN, "tips")) == ("manual", "unsubscribe")
    assert unsuppress(ANN, reason="unsubscribe", effects=mail) == 1
    assert (why(mail, ANN, "news"), why(mail, ANN, "tips")) == ("manual", None)


def test_an_end_may_be_set(mail: Effects) -> None:
    suppress(ANN, until=datetime.now(UTC) + timedelta(days=2), effects=mail)
    assert why(mail) == "manual"
    mail.store.shift_clock(2 * DAY + 60)
    assert why(mail) is None


def test_an_expired_suppression_ends_no_other(mail: Effects) -> None:
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
    suppressions = find_suppressions(ANN, effects=mail)
    assert [
        (suppression.actor, suppression.why, suppression.until, suppression.address) for suppression in suppressions
    ] == [("cli:cy", "asked on the phone", None, ANN)]


def test_a_lifted_address_gets_mail_again(mail: Effects) -> None:
    suppress(ANN, reason="complaint", effects=mail)
    suppress(ANN, reason="unsubscribe", category="news", effects=mail)
    assert unsuppress(ANN, reason="complaint", actor="cli:bo", why="a mistake", effects=mail) == 1
    assert (why(mail), why(mail, ANN, "news")) == (None, "unsubscribe")
    assert unsuppress(ANN, effects=mail) == 1
    assert unsuppress(ANN, effects=mail) == 0
    assert why(mail, ANN, "news") is None
    assert [(entry.action, entry.reason, entry.actor) for entry in suppression_log(ANN, effects=mail)] == [
        ("lifted", "unsubscribe", "app"), ("lifted", "complaint", "cli:bo"),
        ("suppressed", "unsubscribe", "app"), ("suppressed", "complaint", "app"),
    ]  # fmt: skip


_REFUSED = [
    ({"address": "nobody"}, "local@domain"),
    ({"address": "a\n@example.com"}, "printable"),
    ({"address": f"{ANN}, bob@example.com"}, "give one"),
    ({"address": f"{ANN};bob@example.com"}, "give one"),
    ({"address": f"Bob {ANN}"}, "give one"),
    ({"address": ANN, "reason": "whim"}, "complaint, hard_bounce"),
    ({"address": ANN, "reason": "unsubscribe"}, "from a category"),
    ({"address": ANN, "reason": "unsubscribe", "category": "all"}, "from a category"),
    ({"address": ANN, "reason": "unsubscribe", "category": "transactional"}, "from a category"),
    ({"address": ANN, "reason": "complaint", "category": "news"}, "leave out the category"),
    ({"address": ANN, "category": ""}, "1 to 100"),
    ({"address": ANN, "until": datetime(2099, 1, 1)}, "time zone"),  # noqa: DTZ001
    ({"address": ANN, "why": "x" * 1001}, "1000"),
]


def test_invalid_options_are_refused_without_the_address(mail: Effects) -> None:
    for wrong, says in _REFUSED:
        with pytest.raises(EnqueueError, match=says) as refused:
            suppress(**wrong, effects=mail)  # type: ignore[arg-type]
        assert "ann" not in str(refused.value)
    assert rows(mail, "email_suppressions") == []


def test_a_suppression_commits_with_its_caller(mail: Effects) -> None:
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
    [suppression] = find_suppressions(ANN, effects=mail)
    assert (suppression.source, suppression.why) == ("smtp", "smtp_550_5.1.1")


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
    assert [entry.action for entry in suppression_log(ANN, effects=mail)] == ["delivered", "suppressed", "suppressed"]


def test_a_delivery_does_not_undo_a_bounce(mail: Effects) -> None:
    fail(mail, (ANN, "hard"))
    deliver(mail, ANN)
    assert why(mail) == "hard_bounce"


def test_concurrent_failures_are_all_counted(mail: Effects) -> None:
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
    pairs = [(f"u{number}@example.com", "news") for number in range(500)] + [(ANN, None)]
    with statements(mail) as seen, mail.store.read() as connection:
        reasons = suppressed(mail, connection, pairs)
        assert suppressed(mail, connection, []) == []
    assert reasons == [None] * 500 + ["manual"]
    assert len([statement for statement in seen if "email_suppressions" in statement]) == 1


# -- an override ---------------------------------------------------------------------------------------------------


def test_an_override_is_recorded_with_actor_and_reason(mail: Effects) -> None:
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


def test_spellings_of_one_address_are_equal(mail: Effects) -> None:
    for first, second in _SAME:
        suppress(first, effects=mail)
        assert why(mail, second) == "manual"
        assert unsuppress(second, effects=mail) == 1


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
    suppressions = find_suppressions(ANN, effects=mail)
    assert {suppression.address for suppression in suppressions} == {ANN}
    kept = [rows(mail, table) for table in ("email_suppressions", "email_suppression_log", "email_soft_failures")]
    assert all(kept)
    assert "ann@" not in str(kept)
    assert ANN.encode() not in b"".join(bytes(row["sealed"]) for row in kept[0])
    assert all(row["digest"].startswith("hmac:") for table in kept for row in table)
    assert "ann@" not in caplog.text + repr(suppressions)


def test_without_keys_it_works_in_clear_and_keys_may_come_later(mail_factory: MailFactory) -> None:
    bare = mail_factory(keys="")
    suppress(ANN, effects=bare)
    assert [suppression.address for suppression in list_suppressions(effects=bare)] == [ANN]
    keyed = mail_factory()
    assert why(keyed) == "manual"
    suppress(ANN, reason="complaint", effects=keyed)
    assert len(address_digests(keyed, ANN)) == 2
    assert [suppression.reason for suppression in find_suppressions(ANN, effects=keyed)] == ["manual", "complaint"]
    assert unsuppress(ANN, effects=keyed) == 2


def test_what_is_sealed_now_does_not_stay_in_clear_beside_it(mail_factory: MailFactory) -> None:
    for keys in ("", f"old={OLD}", ""):
        app = mail_factory(keys=keys)
        suppress(ANN, effects=app)
        [stored] = rows(app, "email_suppressions")
        assert (stored["address"], stored["sealed"] is not None) == ((None, True) if keys else (ANN, False))
        assert [held.address for held in list_suppressions(effects=app)] == [ANN]


def test_rotation_seals_them_again(mail_factory: MailFactory) -> None:
    suppress(ANN, effects=mail_factory(KEYS))
    suppress(ANN, category="news", effects=mail_factory(KEYS))
    suppress(ANN, category="news", effects=mail_factory(ROTATED_KEYS))  # written again under the new key
    newer = mail_factory(ROTATED_KEYS)
    result = rotate(newer.store, newer.keys, actor="ann")
    assert (result.rotated, result.left, result.unreadable) == (1, [], [])
    after = mail_factory(NEWEST_KEYS)
    assert [(count.place, count.key_id, count.values) for count in count_keys(after.store)] == [
        ("email_suppressions", "new", 2)
    ]
    assert [suppression.address for suppression in find_suppressions(ANN, effects=after)] == [ANN, ANN]


def test_a_missing_key_hides_only_the_text(mail_factory: MailFactory) -> None:
    suppress(ANN, effects=mail_factory(KEYS))
    after = mail_factory(NEWEST_KEYS)
    assert why(after) == "manual"
    assert [suppression.address for suppression in list_suppressions(effects=after)] == [None]
