"""From a reply or a fault to a verdict, by the tables of `replies`. Pure."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from effects_email.transport.base import Reply, Stage, Verdict
from effects_email.transport.faults import FaultCode
from effects_email.transport.replies import ACCEPTED, FAULTS, MEANINGLESS, REPLIES, SESSION, FaultRow, Row, compiled
from effects_email.transport.wait_hint import wait_hint

TEXT_CHARS_MAX = 512
_ENHANCED = re.compile(r"([245])\.(\d{1,3})\.(\d{1,3})(?=\s|$)")
_HINTED = ("retry", "throttle", "transport_down")  # where a wish to wait makes sense


def reply_of(stage: Stage, code: int, text: str) -> Reply:
    """A reply as it is kept: its enhanced code found, its text inert and at most 512 characters."""
    found = _ENHANCED.match(text)
    return Reply(stage=stage, code=code, enhanced=found.group() if found else None, text=inert(text))


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
    return Verdict(
        kind=row.kind,
        code=code,
        reason=row.reason + _mismatch(reply),
        reply=reply,
        after_seconds=_after(row, reply.text),
        suppress=row.suppress,
    )


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
    for row, says in _candidates(stage, code, own):
        if says is None or says.search(text):
            return row
    return None


def fault_row(stage: Stage, fault: FaultCode) -> FaultRow:
    """The first row for this fault; there is one for every stage and fault."""
    return next(row for row in FAULTS if stage in row.stages and fault in row.faults.split())


def too_many_recipients(reply: Reply, accepted_before: int) -> bool:
    """Whether the server only asks for fewer recipients at once: 4.5.3, or a bare 452 or 552 after some were taken."""
    if reply.code not in (452, 552) or not accepted_before:
        return False
    return reply.enhanced is None or reply.enhanced[1:] == ".5.3"


def inert(text: str) -> str:
    """A stranger's text, safe to store and show: whatever is not printable comes as an escape."""
    if len(text) <= TEXT_CHARS_MAX and text.isascii() and text.isprintable():
        return text
    shown = "".join(char if _plain(char) else char.encode("unicode_escape").decode() for char in text[:TEXT_CHARS_MAX])
    return shown[:TEXT_CHARS_MAX]


def _plain(char: str) -> bool:
    category = unicodedata.category(char)
    return char == "\n" or (category[0] != "C" and category not in ("Zl", "Zp"))


def _mismatch(reply: Reply) -> str:
    if reply.enhanced is None or reply.code is None or int(reply.enhanced[0]) == reply.code // 100:
        return ""
    return f" (its enhanced code {reply.enhanced} says otherwise and was left aside)"


def _after(row: Row, text: str) -> float | None:
    hint = wait_hint(text) if row.kind in _HINTED else None
    if hint is None or row.after_seconds is None:
        return row.after_seconds if hint is None else hint
    return max(hint, row.after_seconds)


@lru_cache(1024)
def _candidates(stage: Stage, code: int, enhanced: str | None) -> tuple[tuple[Row, re.Pattern[str] | None], ...]:
    """The rows that fit but for the text, down to the first that asks nothing of the text."""
    found = []
    for row in REPLIES:
        if stage in row.stages and _has_code(row.codes, code) and _has_enhanced(row.enhanced, code, enhanced):
            found.append((row, compiled(row.says) if row.says else None))
            if not row.says:
                break
    return tuple(found)


def _has_code(codes: str, code: int) -> bool:
    for one in codes.split():
        low, _, high = f"{one[0]}00-{one[0]}99".partition("-") if one.endswith("xx") else one.partition("-")
        if int(low) <= code <= int(high or low):
            return True
    return False


def _has_enhanced(patterns: str, code: int, enhanced: str | None) -> bool:
    if not patterns:
        return True
    if patterns == "none" or enhanced is None:
        return patterns == "none" and enhanced is None
    for pattern in patterns.split():
        wanted = pattern.replace("x", str(code // 100), 1)
        if enhanced == wanted or (wanted.endswith("*") and enhanced.startswith(wanted[:-1])):
            return True
    return False
