"""Bounces in words: qmail, old Exim, sendmail, Exchange and others that write no delivery status.

Only where the message is a server's own (an empty Return-Path, a sender such as MAILER-DAEMON, X-Failed-Recipients),
names a recipient and gives a reason that can be read: a code, or words that servers use. All else is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from email.message import Message as MimePart

from effects_email.message.mentions import place_in
from effects_email.returned import parts
from effects_email.returned.parts import RecipientReport

_DAEMON = re.compile(
    r"mailer-daemon|mail-daemon|postmaster|mail delivery (sub)?system|mail administrator|microsoftexchange|"
    r"system administrator|mdaemon|autoreply-bounce",
    re.IGNORECASE,
)
_CUT = re.compile(  # below it is the message that was returned
    r"^[ \t|]*-{2,}\s*(below this line|this is a copy|original message|returned message|unsent message|the header of|"
    r"the body of|message header|message text|included is)|^(--- )?original message (follows|headers|details)|"
    r"^message headers follow|^[ \t]*below is a copy of|^-+returned mail follows|^received: from |^return-path: ",
    re.IGNORECASE | re.MULTILINE,
)
_DELAYED = re.compile(
    r"delivery (status notification )?\(?(is |was |has been |incomplete|delay)|(has|have) been delayed|is delayed|"
    r"will (be retried|continue|keep trying|retry)|still being (retried|queued)|not yet been delivered|"
    r"attempts will continue|no action is required|warning message only|temporarily deferred",
    re.IGNORECASE,
)
_FAILED = re.compile(
    r"permanent(ly)? (error|fail|fatal)|fatal error|i('ve| have) given up|giving up|could not be (delivered|reached)|"
    r"couldn'?t be delivered|cannot be delivered|unable to deliver|wasn'?t able to deliver|not able to deliver|"
    r"failed to deliver|delivery (to the following|has) .{0,60}failed|failed permanently|did not reach|undeliverable|"
    r"delivery fail(ed|ure)|could not deliver|(was|were) not delivered to|"
    r"error (has )?(occurred while attempting to deliver|delivering your mail)|returned (to sender|mail)|"
    r"not going to try again|retry (timeout|time limit) exceeded",
    re.IGNORECASE | re.DOTALL,
)
_REPLY = re.compile(r"(?<![\d.#])([45]\d\d)(?:[ -]#?([45]\.\d{1,3}\.\d{1,3}))?(?=[\s:;,-])(.{0,400})")
_STATUS = re.compile(r"(?<![\d.])([45]\.\d{1,3}\.\d{1,3})(?![\d.])")
_REASONS = re.compile(
    r"no such (user|mailbox|address|recipient)|user unknown|unknown (user|recipient)|account is unknown|"
    r"recipient not found|invalid final delivery userid|name is not recogni[sz]ed|"
    r"retry time(out| limit)? exceeded|unrouteable (address|mail domain)|no mailbox here|over ?quota|quota exceeded|"
    r"mail(box|folder) (is )?(full|unavailable|not found|disabled)|mailbox exceeds allowed size|"
    r"couldn'?t find any host|host (or domain name )?not found|host unknown|no mx (record )?found|"
    r"does not exist|doesn'?t have a [^\s]{1,40} account|account (is|has been) (disabled|inactive|suspended|locked)|"
    r"not listed in|in the queue too long|after multiple retries|all hosts have been failing|envelope expired|"
    r"did not accept our requests to connect",
    re.IGNORECASE,
)
_ADDRESS = (
    r"[<'\"]?([^\s<>()\[\]'\",;:@]{1,64}@[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*)[>'\"]?"
    r"(?=\.{0,3}(?:<mailto:|[\s:;,()]|$))"
)
_BARE_LINE = re.compile(rf"^[ \t]{{0,8}}(?:[*>] )?(?:\d+\.\s*)?{_ADDRESS}", re.MULTILINE)
_LINE = re.compile(
    rf"^[ \t]{{0,8}}(?:[*>] )?(?:\d+\.\s*)?(?:(?:failed to deliver )?to:?\s+)?{_ADDRESS}", re.MULTILINE | re.IGNORECASE
)
# A line that says beside the address what is wrong, as sendmail, IMail, Exchange and others write it.
_PHRASE = re.compile(
    r"^[ \t]*(?:unknown user|user'?s mailbox is full|user mailbox exceeds allowed size|invalid final delivery userid|"
    r"delivery failed \d+ attempts|undeliverable to|failed recipient|recipient address|delivery failed|"
    r"unable to deliver (?:mail|message) to|there was an error delivering your mail to|"
    rf"5\d\d(?: 5\.\d\.\d+)?(?= .+\.\.\. )):? {_ADDRESS}",
    re.MULTILINE | re.IGNORECASE,
)
# The address that the sender used, of which the server made the one that failed.
_MADE_OF = re.compile(
    rf"\((?:expanded from|ultimately generated from|originally addressed to):? {_ADDRESS}", re.IGNORECASE
)
_TALK = re.compile(
    r"^[ \t.]*(?:>>> |while talking to )", re.MULTILINE | re.IGNORECASE
)  # to another server, or of another
# Addresses above it are not those of the recipients: Exchange repeats the message's To first.
_ANNOUNCEMENT = re.compile(
    r"^.*(recipients?(\(s\))?|address(es|\(es\))?|was not delivered to)\b.{0,60}:?[ \t]*$", re.MULTILINE | re.IGNORECASE
)
_RECIPIENTS_MAX = 100
_CHARS_MAX = 16 * 1024  # in which a reason has been given


def recipients(message: MimePart) -> list[RecipientReport]:
    """What the words say of the recipients that they name; none if it is no bounce."""
    failed = parts.addresses(parts.header(message, "X-Failed-Recipients"))
    if not failed and not _is_from_a_server(message):
        return []
    words = _words(message)
    addresses = (failed or _named(words))[:_RECIPIENTS_MAX]
    about = f"{parts.subject(message)}\n{words}"
    if _FAILED.search(about) is None and _DELAYED.search(about):
        return [RecipientReport(action="delayed", addresses=(address,)) for address in addresses]
    if _FAILED.search(about) is None and not failed:
        return []
    reports = [_report(address, words, others=len(addresses) - 1) for address in addresses]
    return [report for report in reports if report is not None]


def reason(message: MimePart, addresses: Sequence[str]) -> RecipientReport | None:
    """What the words beside a delivery status say of a recipient whom it names without a reason."""
    words = _words(message)
    others = len(_named(words)) - 1
    for address in addresses:
        if place_in(words, address) >= 0 and (report := _report(address, words, others=others)) is not None:
            return report
    return None


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


def _named(words: str) -> list[str]:
    """The recipients: whom a phrase names; else who stands below an announcement; else at the beginning of a line."""
    announced = _ANNOUNCEMENT.search(words)
    if announced is None:
        matches = _PHRASE.findall(words) or _LINE.findall(words)
    else:
        matches = _PHRASE.findall(words) or _BARE_LINE.findall(words[announced.end() :]) or _BARE_LINE.findall(words)
    return list(dict.fromkeys(matches))


def _report(address: str, words: str, *, others: int) -> RecipientReport | None:
    """By what stands in its own lines; by all that is said only where that cannot be about another recipient."""
    own = _paragraph(words, address)
    block = re.split(r"\n[ \t]*\n", own, maxsplit=1)[0]
    for text in (block, _own_line(words, address), own, words if not others else _agreed(words)):
        flat = " ".join(text.split())
        reply, status, reason = _REPLY.search(flat), _STATUS.search(flat), _REASONS.search(flat)
        if reply is not None or status is not None or reason is not None:
            return _of(_addresses(address, block), flat, reply, status, reason)
    return None


def _addresses(address: str, block: str) -> tuple[str, ...]:
    original = _MADE_OF.search(block)
    return (address,) if original is None else (original[1], address)


def _of(
    addresses: tuple[str, ...],
    flat: str,
    reply: re.Match[str] | None,
    status: re.Match[str] | None,
    reason: re.Match[str] | None,
) -> RecipientReport:
    diagnostic = reply[0] if reply is not None else (_around(flat, reason) if reason is not None else "")
    enhanced = (reply[2] if reply is not None else None) or (status[1] if status is not None else None)
    return RecipientReport(action="failed", addresses=addresses, status=enhanced, diagnostic=diagnostic.strip())


def _own_line(words: str, address: str) -> str:
    """The line that begins with a reply and names the address: `550 5.1.1 <ann@example.org>... User unknown`."""
    for match in re.finditer(rf"^[ \t>]*(?:<<< )?5\d\d[ -].*{re.escape(address)}.*$", words, re.MULTILINE):
        if place_in(match[0], address) >= 0:
            return match[0]
    return ""


def _paragraph(words: str, address: str) -> str:
    """The line of the address, and what follows it until the next one."""
    start = place_in(words, address)
    if start < 0:
        return ""
    after = start + len(address)
    following = min(
        (match.start() for pattern in (_LINE, _PHRASE, _TALK) if (match := pattern.search(words, after)) is not None),
        default=None,
    )
    begin = words.rfind("\n", 0, start) + 1
    return words[begin:following]


def _agreed(words: str) -> str:
    """All that is said, if it has one reason in it."""
    reasons = {match[0][:20].lower() for match in (*_STATUS.finditer(words), *_REASONS.finditer(words))}
    replies = {match[1] for match in _REPLY.finditer(words)}
    return words if len(reasons) <= 1 and len(replies) <= 1 else ""


def _around(words: str, reason: re.Match[str]) -> str:
    return words[max(reason.start() - 80, 0) : reason.end() + 200]
