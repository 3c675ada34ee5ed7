"""What a report means, in the form of providers' events, by the table that reads SMTP replies."""

from __future__ import annotations

import re
from collections.abc import Mapping

from effects_email.events import EventKind
from effects_email.returned.report import Action, RecipientReport
from effects_email.transport.replies.verdicts import enhanced_of, reply_of, verdict_of_reply

_KINDS: Mapping[Action, EventKind] = {
    "delayed": "delayed", "delivered": "delivered", "relayed": "accepted", "expanded": "accepted",
    "complained": "complained", "unsubscribed": "unsubscribed",
}  # fmt: skip
_REPLY = re.compile(r"(?<![\d.#])([45]\d\d)(?:[ :-]|$)(.*)")
# The recipient's server was not reached, for as long as the relay tried; 5.4.6 and Exchange's 5.4.14 are loops.
_NETWORK = re.compile(r"[45]\.4\.(?!6$|14$)\d+")
_OURS = ("sender", "reputation", "account", "rate")


def kind_of(report: RecipientReport) -> EventKind:
    """A failure is hard, soft, or about something else than the recipient: then `failed`, and nothing follows."""
    if report.action != "failed":
        return _KINDS[report.action]
    words = _REPLY.search(report.diagnostic)
    if words is not None:
        code, text = int(words[1]), words[2].strip()
    else:
        code, text = 550, report.diagnostic
    if report.status is not None and not re.match(r"[45]\.\d", text):
        code = code if words is not None else int(report.status[0]) * 100 + 50
        text = f"{report.status} {text}".strip()
    verdict = verdict_of_reply(reply_of("rcpt", code, text))
    if verdict.suppress == "hard":
        return "bounced_hard"
    if verdict.about in _OURS:
        return "failed"
    is_about_them = verdict.suppress == "soft" or (code < 500 and verdict.about == "recipient")
    return "bounced_soft" if is_about_them or _NETWORK.match(report.status or "") else "failed"


def code_of(report: RecipientReport, form: str) -> str:
    """For the record: `dsn_5.1.1`, `dsn_550`, `arf_complained`."""
    reply = _REPLY.search(report.diagnostic)
    words = reply[2].strip() if reply is not None else report.diagnostic
    status = report.status
    if status is None or status.endswith(".0.0"):  # the last server's own says more
        status = enhanced_of(words) or status
    return f"{form}_{status or (reply[1] if reply is not None else report.action)}"
