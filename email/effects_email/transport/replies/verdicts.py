"""From a reply or a fault to a verdict, by the tables of `words` and `codes`. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache, lru_cache

from msgspec.structs import replace

from effects.extend.text import HIDDEN, clean_text, escape_unprintable
from effects_email.message.mentions import place_in
from effects_email.transport.base import Reply, Stage, Verdict
from effects_email.transport.replies.codes import CODES, FAULTS, SESSION, TOPICS, Consequence, FaultCode, FaultRow, Row
from effects_email.transport.replies.words import WORDS

HINT_MAX_SECONDS = 6 * 3600.0
_UNIT_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_AMOUNT = r"(\d{1,6})\s*(s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?)\b"
_HINT = re.compile(
    rf"(?:try|retry|again|wait|come back|resume|defer(?:red)?|delay(?:ed)?|greylist(?:ed|ing)?|back ?off)"
    rf"[^.;\d]{{0,40}}?{_AMOUNT}|in {_AMOUNT}",
    re.IGNORECASE | re.ASCII,
)
REPLIES: tuple[Row, ...] = WORDS + CODES
TEXT_CHARS_MAX = 512
_COMMON_CHARS_MAX = 64
ACCEPTED = "the next hop took responsibility"
MEANINGLESS = "the server's answer means nothing here"
FOR_ANOTHER = "the message was refused because of another recipient"
_ADDRESS = re.compile(r"[^\s<>@,;:\"']+@[^\s<>@,;:\"']+")
_CODE = r"[245]\.\d{1,3}\.\d{1,3}"
_ENHANCED = re.compile(rf"({_CODE})(?=\s|$)")
# Where it does not come first: qmail's (#5.7.1), IronPort's #5.1.0, others' (5.1.1), [5.1.1], `not allowed - 5.7.1 [`.
_WITHIN = re.compile(rf"#({_CODE})\b(?!\.\d)|[(\[]({_CODE})[)\]]|(?:- |: )({_CODE})(?=\s|$)")
_LINE = re.compile(rf"\s*\n(?:{_CODE}\s)?\s*")  # a further line of a reply repeats the code
_NAMES = re.compile(r"<(?!https?:)[^<>\s]*>|[^\s<>@]+@[\w.-]+")  # names carry no meaning
_HINTED = ("retry", "throttle", "transport_down")  # where a wish to wait makes sense


def wait_hint(text: str) -> float | None:
    """Seconds in a text such as `please try again in 5 minutes`, at most 6 hours; None if there are none."""
    hint_match = _HINT.search(text)
    if hint_match is None:
        return None
    amount, unit = [group for group in hint_match.groups() if group is not None]
    return min(float(amount) * _UNIT_SECONDS[unit[0].lower()], HINT_MAX_SECONDS)


def reply_of(stage: Stage, code: int, text: str) -> Reply:
    """A reply as it is kept: its enhanced code found, its text inert and at most 512 characters."""
    if len(text) > _COMMON_CHARS_MAX or "@" in text:
        return _reply_of(stage, code, text)
    return _common_reply_of(stage, code, text)


def _reply_of(stage: Stage, code: int, text: str) -> Reply:
    return Reply(stage=stage, code=code, enhanced=enhanced_of(text), text=escape_unprintable(text, TEXT_CHARS_MAX))


_common_reply_of = lru_cache(256)(_reply_of)  # `250 2.1.0 Ok` and its like come with every message


def reply_text(reply: Reply) -> str | None:
    """The peer's words without addresses, as both databases can store them."""
    text = reply.text[:TEXT_CHARS_MAX]
    return clean_text(_ADDRESS.sub(HIDDEN, text) if "@" in text else text) or None


def enhanced_of(text: str) -> str | None:
    """The enhanced code that a reply begins with, else one that is marked as such within it."""
    match = _ENHANCED.match(text) or _WITHIN.search(text)
    return None if match is None or match.lastindex is None else match[match.lastindex]


def verdict_of_reply(reply: Reply) -> Verdict:
    """What a reply means at its stage.

    An enhanced code of another class than the basic one (451 with 5.1.1) is kept and pointed out, and decides nothing.
    After the dot, anything that is no 2xx, 4xx or 5xx leaves it unknown whether the message was taken.
    """
    assert reply.code is not None
    code = f"smtp_{reply.code}" + (f"_{reply.enhanced}" if reply.enhanced else "")
    kind = reply.code // 100
    if kind == 2 and reply.stage in ("mail", "rcpt", "dot"):
        return Verdict(kind="accepted", code=code, reason=ACCEPTED, reply=reply)
    row = row_of(reply.stage, reply.code, reply.enhanced, reply.text)
    if row is None:
        return Verdict(kind="unknown" if reply.stage == "dot" else "retry", code=code, reason=MEANINGLESS, reply=reply)
    topic = TOPICS[row.topic]
    consequence = topic.passing if kind == 4 else topic.final
    return Verdict(
        kind=consequence.kind,
        code=code,
        reason=topic.reason + _mismatch(reply),
        reply=reply,
        after_seconds=_after(consequence, reply.text),
        suppress=consequence.suppress,
        about=topic.about,
    )


def share(verdict: Verdict, recipients: Sequence[str]) -> dict[str, Verdict]:
    """One answer for several recipients: what it says of one of them is not held against the others.

    Those whom a refusal names are refused; the others are tried again without them. Where it names no one it is not
    known whom it means, and no address is suppressed.
    """
    if len(recipients) < 2 or verdict.kind != "refused_recipient" or verdict.reply is None:
        return dict.fromkeys(recipients, verdict)
    named = [address for address in recipients if place_in(verdict.reply.text, address) >= 0]
    if not named:
        return dict.fromkeys(recipients, replace(verdict, suppress=None))
    again = replace(verdict, kind="retry", reason=FOR_ANOTHER, suppress=None)
    return {address: verdict if address in named else again for address in recipients}


def verdict_of_fault(stage: Stage, fault: FaultCode) -> Verdict:
    """What a fault of the wire means at this stage."""
    row = fault_row(stage, fault)
    return Verdict(kind=row.kind, code=_fault_code(stage, fault), reason=row.reason, reply=Reply(stage=stage))


def _fault_code(stage: Stage, fault: FaultCode) -> str:
    """`dot_timeout`; before there is a session `tls_failed`, `dns_failed` and `connect_failed` say enough."""
    if stage == "connect" and fault == "closed":
        return "connect_failed"
    return fault if stage in SESSION and fault.startswith(("dns_", "tls_")) else f"{stage}_{fault}"


def row_of(stage: Stage, code: int, enhanced: str | None, text: str) -> Row | None:
    """The first row of the table that fits."""
    own = enhanced if enhanced and int(enhanced[0]) == code // 100 else None
    words = words_of(text)
    for row, says in _candidates(stage, code, own):
        if says is None or says.search(words):
            return row
    return None


def words_of(text: str) -> str:
    """A reply in one line without names and addresses."""
    return _NAMES.sub("*", _LINE.sub(" ", text))


def fault_row(stage: Stage, fault: FaultCode) -> FaultRow:
    """The first row for this fault; there is one for every stage and fault."""
    return next(row for row in FAULTS if stage in row.stages and fault in row.faults.split())


def too_many_recipients(reply: Reply, accepted_before: int) -> bool:
    """Whether the server only asks for fewer recipients at once: 4.5.3, or a bare 452 or 552 after some were taken."""
    if reply.code not in (452, 552) or not accepted_before:
        return False
    return reply.enhanced is None or reply.enhanced[1:] == ".5.3"


def _mismatch(reply: Reply) -> str:
    if reply.enhanced is None or reply.code is None or int(reply.enhanced[0]) == reply.code // 100:
        return ""
    return f" (its enhanced code {reply.enhanced} contradicts it and was ignored)"


def _after(consequence: Consequence, text: str) -> float | None:
    hint = wait_hint(text) if consequence.kind in _HINTED else None
    if hint is None or consequence.after_seconds is None:
        return consequence.after_seconds if hint is None else hint
    return max(hint, consequence.after_seconds)


@lru_cache(1024)
def _candidates(stage: Stage, code: int, enhanced: str | None) -> tuple[tuple[Row, re.Pattern[str] | None], ...]:
    """The rows that fit but for the text, down to the first that asks nothing of the text."""
    candidates = []
    for row in REPLIES:
        if stage in row.stages and _has_code(row.codes, code) and _has_enhanced(row.enhanced, code, enhanced):
            candidates.append((row, _compiled(row.says) if row.says else None))
            if not row.says:
                break
    return tuple(candidates)


@cache
def _compiled(says: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(says), re.IGNORECASE)


def _has_code(codes: str, code: int) -> bool:
    for part in codes.split():
        low, _, high = f"{part[0]}00-{part[0]}99".partition("-") if part.endswith("xx") else part.partition("-")
        if int(low) <= code <= int(high or low):
            return True
    return False


def _has_enhanced(patterns: str, code: int, enhanced: str | None) -> bool:
    if not patterns:
        return True
    if enhanced is None:
        return "none" in patterns.split()
    for pattern in patterns.split():
        expected = pattern.replace("x", str(code // 100), 1)
        if enhanced == expected or (expected.endswith("*") and enhanced.startswith(expected[:-1])):
            return True
    return False
