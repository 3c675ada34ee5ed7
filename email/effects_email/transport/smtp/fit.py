"""Checks of a message before contacting the server: it cannot be sent, or not by this server."""

from __future__ import annotations

import re

from effects_email.transport.base import OutgoingMessage, Verdict
from effects_email.transport.smtp.client import Client

ADDRESS_CHARS_MAX = 320
# Nothing that could end the command or the angle brackets; a quoted local part may hold blanks and brackets.
_ADDRESS = re.compile(r'(?:[^\x00-\x20\x7f<>"\\]+|"(?:[^\x00-\x1f\x7f"\\]|\\[\x20-\x7e])*")@[^\x00-\x20\x7f<>"\\]+')


def malformed(outgoing: OutgoingMessage) -> dict[str, Verdict]:
    """Verdicts about addresses and bytes that no SMTP server may be given; empty where all is well."""
    if not (outgoing.sender == "" or _is_address(outgoing.sender)):
        return _all(outgoing, _refused("config", "bad_sender", "the sender's address is not valid in an envelope"))
    problems = {
        recipient: _refused("refused_recipient", "bad_address", "the address is not valid in an envelope")
        for recipient in outgoing.recipients
        if not _is_address(recipient)
    }
    newlines = outgoing.data.count(b"\r\n")
    if outgoing.data.count(b"\n") != newlines or outgoing.data.count(b"\r") != newlines:
        return _all(outgoing, _refused("refused_message", "bare_line_end", "a line does not end in CRLF"))
    return problems


def misfit(client: Client, outgoing: OutgoingMessage) -> dict[str, Verdict]:
    """Verdicts about what this server does not offer or allow; empty where all is well."""
    if client.size_max and len(outgoing.data) > client.size_max:
        reason = f"the message has {len(outgoing.data):,} bytes and the server takes {client.size_max:,}"
        return _all(outgoing, _refused("refused_message", "too_large", reason))
    if outgoing.utf8 and not client.offers_utf8:
        return _without_utf8(outgoing)
    if not client.offers_8bit and not outgoing.data.isascii():
        return _all(outgoing, _refused("refused_message", "no_8bitmime", "the server takes 7-bit messages only"))
    return {}


def _without_utf8(outgoing: OutgoingMessage) -> dict[str, Verdict]:
    """An address that is not ASCII has no other form: its domain is ASCII already, and no one may rewrite the rest."""
    reason = "the server does not offer SMTPUTF8, which the address needs"
    message = _refused("refused_message", "no_smtputf8", "the server does not offer SMTPUTF8, which the message needs")
    return {
        recipient: message if recipient.isascii() else _refused("refused_recipient", "no_smtputf8", reason)
        for recipient in outgoing.recipients
    }


def _is_address(text: str) -> bool:
    return len(text) <= ADDRESS_CHARS_MAX and _ADDRESS.fullmatch(text) is not None


def _refused(kind: str, code: str, reason: str) -> Verdict:
    return Verdict(kind=kind, code=code, reason=reason)  # type: ignore[arg-type]


def _all(outgoing: OutgoingMessage, verdict: Verdict) -> dict[str, Verdict]:
    return dict.fromkeys(outgoing.recipients, verdict)
