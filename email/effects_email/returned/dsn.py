"""Delivery status notifications (RFC 3464), and fields of their kind where the wrapping (RFC 6522) is bent."""

from __future__ import annotations

import re
from collections.abc import Mapping
from email.message import Message as MimePart

from effects_email.returned import parts
from effects_email.returned.report import Action, RecipientReport

_ACTIONS: Mapping[str, Action] = {
    "failed": "failed", "failure": "failed", "delayed": "delayed", "delivered": "delivered", "relayed": "relayed",
    "expanded": "expanded", "expired": "failed",
}  # fmt: skip
_STATUS = re.compile(r"(?<![\d.])([245]\.\d{1,3}\.\d{1,3})(?![\d.])")
_NAMES = ("original-recipient", "x-actual-recipient", "final-recipient")
_LABELS = ("message/delivery-status", "message/global-delivery-status")
_CHARS_MAX = 1000
_RECIPIENTS_MAX = 100  # as many as a message has; each report becomes an event


def recipients(message: MimePart) -> list[RecipientReport]:
    """What a delivery status says of each recipient; none if the message holds no such part."""
    reports = []
    for part in parts.walk(message):
        label = part.get_content_type()
        if label in _LABELS or (label == "text/plain" and "final-recipient:" in parts.text(part).lower()):
            reports += [report for group in parts.fields(part) if (report := _report(group)) is not None]
    return list(dict.fromkeys(reports))[:_RECIPIENTS_MAX]


def _report(group: Mapping[str, str]) -> RecipientReport | None:
    named = [group[name] for name in _NAMES if name in group]
    if not named:
        return None
    diagnostic = _words(group.get("diagnostic-code", "") or group.get("x-supplementary-info", ""))
    if not diagnostic and not _STATUS.search(group.get("status", "")):
        diagnostic = _words(group.get("status", ""))  # `553 Exceeded maximum inbound message size`
    status = _STATUS.search(group.get("status", "")) or _STATUS.search(diagnostic)
    action = _action(group.get("action", ""), status[1] if status is not None else None)
    if action is None:
        return None
    addresses = [address for value in named if (address := parts.address(value)) is not None]
    return RecipientReport(
        action=action,
        addresses=tuple(dict.fromkeys(addresses)),
        status=status[1] if status is not None else None,
        diagnostic=diagnostic,
    )


def _action(word: str, status: str | None) -> Action | None:
    """By its word; without one, or with an unknown one, a 5.x.x status is a failure, and all else is left alone."""
    match = re.match(r"[a-z]+", word.strip().lower())
    action = _ACTIONS.get(match[0]) if match is not None else None
    return action or ("failed" if status is not None and status.startswith("5") else None)


def _words(value: str) -> str:
    """A diagnostic without its type: `smtp; 550 5.1.1 no such user`."""
    kind, semicolon, rest = value.partition(";")
    words = rest if semicolon and re.fullmatch(r"[\w.-]{1,30}", kind.strip()) else value
    return " ".join(words.split())[:_CHARS_MAX]
