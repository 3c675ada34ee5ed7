"""Complaints in the Abuse Reporting Format (RFC 5965)."""

from __future__ import annotations

from collections.abc import Mapping
from email.message import Message as MimePart

from effects_email.returned import parts
from effects_email.returned.report import Action, RecipientReport

# `not-spam` takes a complaint back, `auth-failure` and `virus` are not about what the recipient wants: left alone.
_TYPES: Mapping[str, Action] = {
    "abuse": "complained", "fraud": "complained", "opt-out": "unsubscribed", "opt-out-list": "unsubscribed",
}  # fmt: skip
_NAMES = ("original-rcpt-to", "removal-recipient")
_COMPLAINTS_MAX = 100  # each becomes an event


def recipients(message: MimePart) -> list[RecipientReport]:
    """Who complains; addresses are often blacked out, and then there are none."""
    reports = []
    for part in parts.walk(message):
        if part.get_content_type() != "message/feedback-report":
            continue
        for group in parts.fields(part):
            action = _TYPES.get(group.get("feedback-type", "").strip().lower())
            if action is not None:
                named = [address for name in _NAMES for address in parts.addresses(group.get(name, ""))]
                reports.append(RecipientReport(action=action, addresses=tuple(dict.fromkeys(named))))
    return reports[:_COMPLAINTS_MAX]
