"""The table: every row is reached, nothing falls through, and the words of the issue hold one by one."""

from __future__ import annotations

import builtins
import inspect
import itertools
import re
import smtplib
import socket
import ssl
from typing import get_args

import pytest

from effects_email.transport.base import Kind, Stage, Suppress, Verdict
from effects_email.transport.replies.codes import FAULT_CODES, TOPICS, Garbage, fault_of
from effects_email.transport.replies.verdicts import (
    REPLIES,
    TEXT_CHARS_MAX,
    fault_row,
    reply_of,
    row_of,
    share,
    too_many_recipients,
    verdict_of_fault,
    verdict_of_reply,
    wait_hint,
)

STAGES: tuple[Stage, ...] = get_args(Stage)
SMTP_STAGES = [stage for stage in STAGES if stage != "request"]


def judged(stage: Stage, code: int, text: str = "") -> Verdict:
    return verdict_of_reply(reply_of(stage, code, text))


# Stage, reply → kind, floor in seconds, suppression.
EXPECTED: list[tuple[Stage, str, Kind, float | None, Suppress | None]] = [
    ("banner", "421 too many connections", "transport_down", None, None),
    ("banner", "554 5.7.1 go away", "config", None, None),
    ("ehlo", "502 what", "config", None, None),
    ("starttls", "454 4.7.0 not now", "transport_down", None, None),
    ("starttls", "501 no", "config", None, None),
    ("auth", "535 5.7.8 bad credentials", "config", None, None),
    ("auth", "534 5.7.9 application password required", "config", None, None),
    ("auth", "538 5.7.11 encryption required", "config", None, None),
    ("auth", "530 5.7.0 STARTTLS first", "config", None, None),
    ("auth", "454 4.7.0 temporary failure", "transport_down", None, None),
    ("auth", "421 4.7.0 later", "transport_down", None, None),
    ("auth", "432 4.7.12 a password transition is needed", "config", None, None),
    ("mail", "250 2.1.0 ok", "accepted", None, None),
    ("mail", "421 4.3.2 closing", "retry", None, None),
    ("mail", "450 4.1.8 domain not found", "retry", None, None),
    ("mail", "451 4.3.0 local error", "retry", None, None),
    ("mail", "452 4.3.1 no space", "retry", None, None),
    ("mail", "552 5.3.4 too big", "refused_message", None, None),
    ("mail", "552 too big", "refused_message", None, None),
    ("mail", "554 5.2.3 too big", "refused_message", None, None),
    ("mail", "550 5.1.7 bad sender", "config", None, None),
    ("mail", "553 5.1.8 bad sender", "config", None, None),
    ("mail", "550 5.7.1 not allowed to send as this", "config", None, None),
    ("mail", "550 5.7.27 null MX", "config", None, None),
    ("mail", "554 no", "config", None, None),
    ("mail", "530 5.7.0 authentication required", "config", None, None),
    ("mail", "501 5.1.7 bad sender syntax", "config", None, None),
    ("mail", "501 5.5.4 bad parameter", "refused_message", None, None),
    ("mail", "503 5.5.1 sequence", "refused_message", None, None),
    ("mail", "555 5.5.4 unknown parameter", "refused_message", None, None),
    ("rcpt", "250 2.1.5 ok", "accepted", None, None),
    ("rcpt", "251 will forward", "accepted", None, None),
    ("rcpt", "421 4.3.2 closing", "retry", None, None),
    ("rcpt", "450 4.7.1 greylisted", "retry", 300, None),
    ("rcpt", "451 4.7.1 greylisted, try again in 60 seconds", "retry", 300, None),
    ("rcpt", "451 4.7.1 greylisted, try again in 20 minutes", "retry", 1200, None),
    ("rcpt", "450 4.2.1 the user is receiving mail too quickly", "retry", 900, None),
    ("rcpt", "452 4.5.3 too many recipients", "retry", 0, None),
    ("rcpt", "452 4.2.2 mailbox full", "retry", 3600, None),
    ("rcpt", "452 4.3.1 system full", "retry", 3600, None),
    ("rcpt", "550 5.1.1 no such user", "refused_recipient", None, "hard"),
    ("rcpt", "550 5.1.2 no such domain", "refused_recipient", None, "hard"),
    ("rcpt", "550 5.1.3 bad syntax", "refused_recipient", None, "hard"),
    ("rcpt", "501 5.1.3 bad syntax", "refused_recipient", None, "hard"),
    ("rcpt", "550 5.1.6 moved", "refused_recipient", None, "hard"),
    ("rcpt", "550 5.1.10 null MX", "refused_recipient", None, "hard"),
    ("rcpt", "551 user not local", "refused_recipient", None, "hard"),
    ("rcpt", "553 5.1.3 bad", "refused_recipient", None, "hard"),
    ("rcpt", "556 5.1.10 null MX", "refused_recipient", None, "hard"),
    ("rcpt", "550 5.2.1 disabled", "refused_recipient", None, "hard"),
    ("rcpt", "550 5.7.13 disabled", "config", None, None),
    ("rcpt", "550 5.7.17 owner changed", "refused_recipient", None, "hard"),
    ("rcpt", "550 5.7.18 domain owner changed", "refused_recipient", None, "hard"),
    ("rcpt", "552 5.2.2 full", "refused_recipient", None, "soft"),
    ("rcpt", "550 5.7.1 blocked", "refused_message", None, None),
    ("rcpt", "554 5.7.1 Client host blocked", "config", None, None),
    ("rcpt", "554 5.7.1 <x>: Relay access denied", "config", None, None),
    ("rcpt", "550 5.1.8 sender's domain", "config", None, None),
    ("rcpt", "550 5.1.7 Invalid address", "config", None, None),
    ("rcpt", "550 5.7.1 Your account has been suspended", "config", None, None),
    ("dot", "554 Your e-mail account is disabled, contact support", "config", None, None),
    ("dot", "550 Outgoing mail from user x has been suspended", "config", None, None),
    ("dot", "550 5.7.1 The sending account is inactive", "config", None, None),
    ("rcpt", "550 The return address does not exist", "config", None, None),
    ("rcpt", "550 Absender unbekannt", "config", None, None),
    ("dot", "550 domain of the From address does not exist", "config", None, None),
    ("dot", "554 5.6.0 invalid address in header To", "refused_message", None, None),
    ("rcpt", "550 Ihre IP-Adresse ist unbekannt", "config", None, None),
    ("dot", "550 unknown user name or bad password", "config", None, None),
    ("dot", "550 5.1.8 Sender's address unknown", "config", None, None),
    ("rcpt", "550 no", "refused_recipient", None, "soft"),
    ("rcpt", "503 5.5.1 sequence", "refused_message", None, None),
    ("data", "451 4.3.0 not now", "retry", None, None),
    ("data", "554 5.5.1 no", "refused_message", None, None),
    ("dot", "250 2.0.0 queued", "accepted", None, None),
    ("dot", "200 odd", "accepted", None, None),
    ("dot", "354 odd", "unknown", None, None),
    ("dot", "421 4.3.2 closing", "retry", None, None),
    ("dot", "450 4.7.1 no", "retry", None, None),
    ("dot", "451 4.3.0 no", "retry", None, None),
    ("dot", "452 4.3.1 full", "retry", 3600, None),
    ("dot", "454 4.7.0 throttled", "throttle", 60, None),
    ("dot", "454 Throttling failure: Maximum sending rate exceeded.", "throttle", 60, None),
    ("dot", "454 Throttling failure: Daily message quota exceeded.", "throttle", 3600, None),
    ("dot", "550 5.4.5 Daily user sending limit exceeded", "throttle", 3600, None),
    ("dot", "554 5.7.1 spam", "refused_message", None, None),
    ("dot", "550 5.6.0 bad content", "refused_message", None, None),
    ("dot", "552 5.3.4 too big", "refused_message", None, None),
    ("dot", "550 5.1.1 no such user", "refused_recipient", None, "hard"),
    ("rcpt", "421 4.7.0 [TSS04] deferred due to user complaints", "throttle", 900, None),
    ("mail", "421 4.7.0 too many messages, slow down", "throttle", 60, None),
]  # fmt: skip


@pytest.mark.parametrize(("stage", "reply", "kind", "after", "suppress"), EXPECTED)
def test_a_reply_has_the_meaning_in_the_research_table(
    stage: Stage, reply: str, kind: Kind, after: float | None, suppress: Suppress | None
) -> None:
    verdict = judged(stage, int(reply[:3]), reply[4:])
    assert (verdict.kind, verdict.after_seconds, verdict.suppress) == (kind, after, suppress)
    assert verdict.code.startswith(f"smtp_{reply[:3]}")
    assert verdict.reason


@pytest.mark.slow
def test_every_row_of_codes_can_be_reached() -> None:
    """No row stands behind a more general one that swallows all it would fit; rows of words are reached by replies."""
    enhanced = [None, *(f".{subject}.{detail}" for subject in range(8) for detail in range(30))]
    reached = set()
    for stage, code in itertools.product(SMTP_STAGES, range(200, 560)):
        for suffix in enhanced if str(code) in " ".join(row.codes for row in REPLIES) else (None, ".0.0"):
            own = f"{code // 100}{suffix}" if suffix else None
            reached.add(id(row_of(stage, code, own, "")))
    rows = [row for row in REPLIES if not row.says and len(row.enhanced) < 40 and "x.1.90" not in row.enhanced]
    assert [row for row in rows if id(row) not in reached and "12" not in row.enhanced] == []


def test_every_topic_is_used_and_every_row_has_one() -> None:
    assert {row.topic for row in REPLIES} == set(TOPICS)


def test_only_a_recipients_own_fault_suppresses_it() -> None:
    for topic in TOPICS.values():
        for consequence in (topic.final, topic.passing):
            assert consequence.kind != "refused_recipient" or topic.about == "recipient"
            assert consequence.suppress is None or consequence.kind == "refused_recipient"
        assert topic.passing.suppress is None


@pytest.mark.parametrize("text", [
    "5.1.0 unspecific", "5.0.0 unspecific", "5.1.4 ambiguous", "#5.1.0 said in the middle", "no code",
])  # fmt: skip
@pytest.mark.parametrize("stage", ["rcpt", "data", "dot"])
def test_an_unspecific_code_never_suppresses_at_once(stage: Stage, text: str) -> None:
    assert judged(stage, 550, text).suppress in (None, "soft")


@pytest.mark.parametrize("stage", SMTP_STAGES)
def test_no_reply_falls_through(stage: Stage) -> None:
    for code in range(200, 600):
        verdict = judged(stage, code)
        accepted = verdict.kind == "accepted"
        assert accepted is (code < 300 and stage in ("mail", "rcpt", "dot"))
        if stage == "dot" and 300 <= code < 400:
            assert verdict.kind == "unknown"
        elif stage in ("body", "dot") or code >= 400:
            assert verdict.kind != "unknown"
        if code // 100 == 4:
            assert verdict.kind not in ("refused_recipient", "refused_message")
            assert verdict.suppress is None


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("fault", FAULT_CODES)
def test_every_fault_has_one_meaning_at_every_stage(stage: Stage, fault: str) -> None:
    verdict = verdict_of_fault(stage, fault)  # type: ignore[arg-type]
    assert (verdict.kind == "unknown") is (stage == "dot")
    assert stage in verdict.code or verdict.code == fault
    assert fault_row(stage, fault).reason == verdict.reason  # type: ignore[arg-type]


def test_an_unverifiable_certificate_is_a_configuration_error() -> None:
    for stage in ("connect", "tls", "starttls"):
        assert verdict_of_fault(stage, "tls_unverified").kind == "config"  # type: ignore[arg-type]


def test_an_enhanced_code_of_another_class_is_kept_and_pointed_out() -> None:
    verdict = judged("rcpt", 451, "5.1.1 no such user")
    assert (verdict.kind, verdict.suppress, verdict.code) == ("retry", None, "smtp_451_5.1.1")
    assert "5.1.1 contradicts it" in verdict.reason
    assert judged("rcpt", 550, "4.2.2 full").suppress == "soft"  # read as a bare 550


@pytest.mark.parametrize(("code", "text", "before", "expected"), [
    (452, "4.5.3 too many", 1, True), (452, "too many", 1, True), (552, "too many", 1, True),
    (552, "5.5.3 too many", 1, True), (452, "4.5.3 too many", 0, False), (452, "4.2.2 full", 1, False),
    (552, "5.2.2 full", 1, False), (450, "4.5.3 too many", 1, False),
])  # fmt: skip
def test_too_many_recipients_is_distinguished_from_a_full_mailbox(
    code: int, text: str, before: int, *, expected: bool
) -> None:
    assert too_many_recipients(reply_of("rcpt", code, text), before) is expected


def test_third_party_text_is_inert_and_short() -> None:
    reply = reply_of("rcpt", 550, "5.1.1 \x1b[31mred\x07 \u202egnirts\x00 " + "x" * 1000)
    assert len(reply.text) == TEXT_CHARS_MAX
    assert re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202e]", reply.text) is None
    assert reply.enhanced == "5.1.1"


@pytest.mark.parametrize(("text", "seconds"), [
    ("try again in 5 minutes", 300), ("please retry after 90 seconds", 90), ("Greylisted for 300 seconds", 300),
    ("wait 2 hours", 7200), ("Try again later", None), ("come back in 10 min", 600), ("defer for 30s", 30),
    ("again in 99 hours", 21600), ("in 45 seconds you may send again", 45), ("4.7.1 you sent 500 messages", None),
    ("5 minutes ago something failed", None), ("", None), ("retry in 1000000000 seconds", None),
    ("try again at 12:30:00", None), ("try again in 5 \u017f", None),
])  # fmt: skip
def test_a_requested_wait_is_found_in_the_text(text: str, seconds: float | None) -> None:
    assert wait_hint(text) == seconds


def test_a_refusal_of_one_recipient_is_not_that_of_a_shorter_address() -> None:
    verdict = judged("dot", 550, "5.1.1 <JoAnn@example.com>: user unknown")
    people = ["ann@example.com", "joann@example.com", "joann@example.co", "x.joann@example.com"]
    shared = share(verdict, people)
    assert [shared[address].suppress for address in people] == [None, "hard", None, None]
    assert [shared[address].kind for address in people] == ["retry", "refused_recipient", "retry", "retry"]


def test_a_hint_changes_no_final_verdict() -> None:
    assert judged("rcpt", 550, "5.1.1 no such user, try again in 5 minutes").after_seconds is None
    assert judged("mail", 451, "4.3.0 try again in 5 minutes").after_seconds == 300


# -- exceptions ----------------------------------------------------------------------------------------------

_WITH_REPLY = smtplib.SMTPResponseException
_BY_NAME = {
    "SMTPServerDisconnected": "closed", "SMTPNotSupportedError": "not_offered", "SSLEOFError": "closed",
    "SSLCertVerificationError": "tls_unverified", "SSLZeroReturnError": "closed", "gaierror": "dns_failed",
    "herror": "dns_failed", "TimeoutError": "timeout",
}  # fmt: skip


def _exceptions() -> list[type[BaseException]]:
    """Every exception that smtplib, ssl and socket define, and every kind of OSError that Python has."""
    classes = {
        member
        for module in (smtplib, ssl, socket, builtins)
        for name, member in inspect.getmembers(module, inspect.isclass)
        if issubclass(member, OSError) and not name.startswith("_")
    }
    return sorted({*classes, Garbage}, key=lambda error: error.__qualname__)


@pytest.mark.parametrize("kind", _exceptions(), ids=lambda kind: kind.__name__)
def test_every_exception_of_the_wire_lands_on_one_branch(kind: type[BaseException]) -> None:
    if issubclass(kind, _WITH_REPLY):
        assert issubclass(kind, smtplib.SMTPException)  # carries a reply, which is classified instead
        return
    error = kind.__new__(kind)
    expected = _BY_NAME.get(kind.__name__)
    if expected is None:
        expected = (
            "tls_failed" if issubclass(kind, ssl.SSLError)
            else "garbage" if issubclass(kind, smtplib.SMTPException)
            else "closed"
        )  # fmt: skip
    assert fault_of(error) == expected


@pytest.mark.parametrize(("error", "fault"), [
    (ConnectionRefusedError(), "closed"), (BrokenPipeError(), "closed"), (ConnectionResetError(), "closed"),
    (UnicodeEncodeError("ascii", "ü", 0, 1, "no"), "garbage"), (RuntimeError(), "other"),
])  # fmt: skip
def test_an_unforeseen_exception_has_an_outcome_too(error: Exception, fault: str) -> None:
    assert fault_of(error) == fault
