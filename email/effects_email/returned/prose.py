"""Bounces in words: qmail, old Exim, sendmail, Exchange and others that write no delivery status.

Only where the message is a server's own (an empty Return-Path, a sender such as MAILER-DAEMON, X-Failed-Recipients),
names a recipient and gives a reason that can be read: a code, or words that servers use. All else is left alone.
"""

from __future__ import annotations

import re
from email.message import Message as MimePart

from effects_email.returned import parts
from effects_email.returned.report import RecipientReport

_DAEMON = re.compile(
    r"mailer-daemon|mail-daemon|postmaster|mail delivery (sub)?system|mail administrator|microsoftexchange|"
    r"system administrator|mdaemon|autoreply-bounce",
    re.IGNORECASE,
)
_CUT = re.compile(  # below it is the message that was returned
    r"^-{2,}\s*(below this line|this is a copy|original message|returned message|unsent message|the header of|"
    r"the body of|message header|included is)|^(--- )?original message (follows|headers)|^received: from |"
    r"^return-path: ",
    re.IGNORECASE | re.MULTILINE,
)
_DELAYED = re.compile(
    r"delivery (status notification )?\(?(is |was |has been |incomplete|delay)|(has|have) been delayed|is delayed|"
    r"will (be retried|continue|keep trying|retry)|still being (retried|queued)|not yet been delivered|"
    r"no action is required|warning message only|temporarily deferred",
    re.IGNORECASE,
)
_FAILED = re.compile(
    r"permanent(ly)? (error|fail|fatal)|fatal error|i('ve| have) given up|giving up|could not be delivered|"
    r"couldn'?t be delivered|cannot be delivered|unable to deliver|wasn'?t able to deliver|not able to deliver|"
    r"failed to deliver|delivery (to the following|has) .{0,60}failed|did not reach|undeliverable|delivery failed|"
    r"returned to sender|"
    r"retry (timeout|time limit) exceeded",
    re.IGNORECASE | re.DOTALL,
)
_REPLY = re.compile(r"(?<![\d.#])([45]\d\d)(?:[ -]#?([45]\.\d{1,3}\.\d{1,3}))?(?=[\s:;,-])(.{0,400})")
_STATUS = re.compile(r"(?<![\d.])([45]\.\d{1,3}\.\d{1,3})(?![\d.])")
_REASONS = re.compile(
    r"no such (user|mailbox|address|recipient)|user unknown|unknown (user|recipient)|account is unknown|"
    r"retry time(out| limit)? exceeded|unrouteable (address|mail domain)|no mailbox here|over ?quota|quota exceeded|"
    r"mailbox (is )?(full|unavailable|not found|disabled)|couldn'?t find any host|host (or domain name )?not found|"
    r"does not exist|doesn'?t have a [^\s]{1,40} account|account is (disabled|inactive|suspended)|not listed in",
    re.IGNORECASE,
)
_LINE = re.compile(
    r"^\s{0,8}(?:\d+\.\s*)?(?:(?:failed to deliver )?to:?\s+)?"
    r"[<'\"]?([^\s<>()'\",;:@]{1,64}@[\w.-]{1,255})[>'\"]?(?=[\s:.]|$)",
    re.MULTILINE | re.IGNORECASE,
)
_RECIPIENTS_MAX = 100
_CHARS_MAX = 16 * 1024  # in which a reason has been given


def recipients(message: MimePart) -> list[RecipientReport]:
    """What the words say of the recipients that they name; none if it is no bounce."""
    failed = parts.addresses(parts.header(message, "X-Failed-Recipients"))
    if not failed and not _is_from_a_server(message):
        return []
    words = _words(message)
    addresses = failed or list(dict.fromkeys(match.rstrip(".") for match in _LINE.findall(words)))
    addresses = addresses[:_RECIPIENTS_MAX]
    about = f"{parts.subject(message)}\n{words}"
    if _FAILED.search(about) is None and _DELAYED.search(about):
        return [RecipientReport(action="delayed", addresses=(address,)) for address in addresses]
    if _FAILED.search(about) is None and not failed:
        return []
    return [report for address in addresses if (report := _report(address, _paragraph(words, address)))]


def _is_from_a_server(message: MimePart) -> bool:
    if parts.header(message, "Return-Path").replace(" ", "") == "<>":
        return True
    sender = parts.header(message, "From")
    return not sender or _DAEMON.search(sender) is not None


def _words(message: MimePart) -> str:
    """The first text, up to where the message is quoted that came back."""
    for part in parts.walk(message):
        if part.get_content_type() == "text/plain":
            words = parts.text(part)[:_CHARS_MAX]
            cut = _CUT.search(words)
            return words[: cut.start()] if cut is not None else words
    return ""


def _paragraph(words: str, address: str) -> str:
    """What follows an address until the next one, else all that is said."""
    start = words.find(address)
    if start < 0:
        return words
    following = _LINE.search(words, start + len(address))
    own = words[start + len(address) : following.start() if following is not None else None]
    return own if _REPLY.search(own) or _STATUS.search(own) or _REASONS.search(own) else words


def _report(address: str, words: str) -> RecipientReport | None:
    flat = " ".join(words.split())
    reply, status, reason = _REPLY.search(flat), _STATUS.search(flat), _REASONS.search(flat)
    if reply is None and status is None and reason is None:
        return None
    diagnostic = reply[0] if reply is not None else (_around(flat, reason) if reason is not None else "")
    enhanced = (reply[2] if reply is not None else None) or (status[1] if status is not None else None)
    return RecipientReport(action="failed", addresses=(address,), status=enhanced, diagnostic=diagnostic.strip())


def _around(words: str, reason: re.Match[str]) -> str:
    return words[max(reason.start() - 80, 0) : reason.end() + 200]
