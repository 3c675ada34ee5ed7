"""Explain what would follow a reply or a fault, from the tables of `transport`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, get_args

import msgspec

from effects import ConfigurationError
from effects.extend.actions import Explanation
from effects.extend.arguments import shown
from effects.extend.text import whole_number
from effects_email.classify import is_of_login
from effects_email.transport.base import About, Kind, Stage, Suppress, Verdict
from effects_email.transport.replies.codes import FAULT_CODES, FaultCode
from effects_email.transport.replies.verdicts import reply_of, verdict_of_fault, verdict_of_reply

SMTP_STAGES: tuple[Stage, ...] = tuple(stage for stage in get_args(Stage) if stage != "request")
_FOLLOWS: Mapping[Kind, str] = {
    "accepted": "done",
    "retry": "tried again later; counts as an attempt",
    "throttle": "mail by this way rests for a while; costs no attempt",
    "refused_recipient": "this recipient ends refused; the others continue",
    "refused_message": "the message ends dead; the address is not blamed",
    "config": "it waits and others are tried; refused alike twice in a row, the transport rests; costs no attempt",
    "transport_down": "the transport rests for a while; costs no attempt",
    "unknown": "it may have arrived: the message's on_unknown decides (repeat_once, hold or repeat)",
}


_LOGIN = "the transport rests for 1, 2, 5, then 15 min; after each rest one message tries it; costs no attempt"


def _follows(verdict: Verdict) -> str:
    return _LOGIN if is_of_login(verdict) else _FOLLOWS[verdict.kind]


class ReplyExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict, and what follows from it."""

    what: str
    stage: Stage
    kind: Kind
    about: About | None
    why: str
    follows: str
    not_before_seconds: float | None
    suppress: Suppress | None


def explain(what: str, enhanced: str | None = None, *, stage: Stage = "rcpt", text: str = "") -> ReplyExplanation:
    """What a reply or a fault means at a stage.

    Args:
        what: a basic code (`550`) or a fault (`timeout`).
        enhanced: `5.1.1`.
        text: the rest of the reply; some rows match it, and it may contain a delay.

    Raises:
        ConfigurationError: `what` is neither, or `enhanced` is no enhanced code.
    """
    verdict = _verdict(what, enhanced, stage, text)
    return ReplyExplanation(
        what=verdict.code,
        stage=stage,
        kind=verdict.kind,
        about=verdict.about,
        why=verdict.reason,
        follows=_follows(verdict),
        not_before_seconds=verdict.after_seconds,
        suppress=verdict.suppress,
    )


def _verdict(what: str, enhanced: str | None, stage: Stage, text: str) -> Verdict:
    if what in FAULT_CODES:
        fault: FaultCode = what
        return verdict_of_fault(stage, fault)
    code = whole_number(what, 3)
    if code is None or not 200 <= code <= 599:
        raise ConfigurationError(f"{shown(what)} is no reply code from 200 to 599 and none of {', '.join(FAULT_CODES)}")
    reply = reply_of(stage, code, f"{enhanced or ''} {text}".strip())
    if enhanced and reply.enhanced != enhanced:
        raise ConfigurationError(f"{shown(enhanced)} is no enhanced code; give one such as 5.1.1")
    return verdict_of_reply(reply)


def _fault_named(error_code: str, stage: Stage) -> str:
    """The fault of an attempt's error code, which `verdicts` makes of stage and fault."""
    return "closed" if error_code == "connect_failed" else error_code.removeprefix(f"{stage}_")


_SMTP_CODE = re.compile(r"smtp_([45][0-9]{2})(?:_([245]\.[0-9]{1,3}\.[0-9]{1,3}))?")


def why_final(error_code: str | None) -> str | None:
    """Why what ended by this code is refused again; None where it may be accepted later."""
    if error_code == "suppressed":
        return "the recipient is on the suppression list: take the address off it first"
    parts = _SMTP_CODE.fullmatch(error_code or "")
    if parts is None:
        return None
    verdict = _verdict(parts[1], parts[2], "rcpt", "")
    if verdict.kind == "refused_recipient":
        return f"{verdict.reason}: the server refuses this address"
    return f"{verdict.reason}: the server refuses these bytes" if verdict.kind == "refused_message" else None


def explanation_of(error_code: str | None, detail: Mapping[str, Any]) -> Explanation | None:
    """Explain the answer of a recorded attempt; None where it is not one of SMTP."""
    stage = detail.get("stage")
    if stage not in SMTP_STAGES:
        return None
    what = str(detail["reply_code"]) if detail.get("reply_code") else _fault_named(error_code or "", stage)
    if whole_number(what) is None and what not in FAULT_CODES:
        return None  # our own verdict, whose message says it
    explanation = explain(what, detail.get("enhanced"), stage=stage, text=detail.get("reply") or "")
    return Explanation(meaning=explanation.why, follows=explanation.follows)
