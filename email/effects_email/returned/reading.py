"""From the bytes of a message to the report that it is, or to None: what people and machines reply is left alone.

Delivery status notifications (RFC 3464), and fields of their kind where the wrapping (RFC 6522) is bent; complaints in
the Abuse Reporting Format (RFC 5965), and those of Microsoft, AOL and SpamCop in forms of their own; and bounces in
words, by `prose`. `ReportReader` has a process beside this one read them, each message within a time of the processor.
"""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.errors import MessageError
from email.message import Message as MimePart
from email.utils import parsedate_to_datetime
from typing import IO

import msgspec
from msgspec.structs import replace

from effects_email.returned import parts, prose
from effects_email.returned.parts import Action, Form, RecipientReport, ReturnedReport

# `not-spam` takes a complaint back, `auth-failure` and `virus` are not about what the recipient wants: left alone.
_COMPLAINTS: Mapping[str, Action] = {
    "abuse": "complained", "fraud": "complained", "opt-out": "unsubscribed", "opt-out-list": "unsubscribed",
}  # fmt: skip
_COMPLAINT_FIELDS = ("original-rcpt-to", "removal-recipient")
_FEEDBACK_FIELDS = {"feedback-type", "user-agent", "version"}  # which RFC 5965 requires
_JUNK_REPORTER = "X-HmXmrOriginalRecipient"
_JUNK_REPORT = re.compile(rf"^{_JUNK_REPORTER}:[ \t]*(\S.*)$", re.IGNORECASE | re.MULTILINE)
_SPAMCOP = re.compile(r"@reports\.spamcop\.net\b", re.IGNORECASE)
_COMPLAINTS_MAX = 100  # each becomes an event
_ACTIONS: Mapping[str, Action] = {
    "failed": "failed", "failure": "failed", "delayed": "delayed", "delivered": "delivered", "relayed": "relayed",
    "expanded": "expanded", "expired": "failed",
}  # fmt: skip
_STATUS = re.compile(r"(?<![\d.])([245]\.\d{1,3}\.\d{1,3})(?![\d.])")
_RECIPIENT_FIELDS = ("original-recipient", "x-actual-recipient", "final-recipient")
_LABELS = ("message/delivery-status", "message/global-delivery-status")
_DIAGNOSTIC_CHARS_MAX = 1000
_RECIPIENTS_MAX = 100  # as many as a message has; each report becomes an event
# Where a report came to, as the last server wrote it.
_CAME_TO = ("X-Original-To", "Delivered-To", "Envelope-To", "X-Envelope-To", "To", "X-Rcpt-To")
# Ours are visible ASCII, and what is asked for goes to the database, which takes no NUL.
_MESSAGE_ID = re.compile(r"<([!-;=?-~]{1,250}@[!-;=?-~]{1,250})>")
_QUOTED_ID = re.compile(r"^[> \t]*Message-ID:\s*<([!-;=?-~]{1,500})>", re.IGNORECASE | re.MULTILINE)
_RETURNED = ("message/rfc822", "text/rfc822-headers", "message/rfc822-headers", "message/global",
             "message/global-headers")  # fmt: skip
_IDS_MAX = 10
CPU_SECONDS = 10.0  # a hundred times what the worst message takes that is known
_LENGTH_BYTES = 4
_MAIN = "from effects_email.returned.reading import main; main()"


def complaining_recipients(message: MimePart) -> list[RecipientReport]:
    """Who complains; addresses are often blacked out, and then there are none."""
    reports = []
    for part in parts.walk(message):
        for group in _feedback(part):
            action = _COMPLAINTS.get(group.get("feedback-type", "").strip().lower())
            if action is not None:
                named = [address for name in _COMPLAINT_FIELDS for address in parts.addresses(group.get(name, ""))]
                reports.append(RecipientReport(action=action, addresses=tuple(dict.fromkeys(named))))
    return reports[:_COMPLAINTS_MAX]


def _feedback(part: MimePart) -> list[dict[str, str]]:
    """The groups of fields of a feedback report, or of one that is labelled as text."""
    label = part.get_content_type()
    if label == "message/feedback-report":
        return parts.fields(part)
    if label != "text/plain" or "feedback-type:" not in parts.text(part).lower():
        return []
    return [group for group in parts.fields(part) if group.keys() >= _FEEDBACK_FIELDS]


def _other_complaint(message: MimePart, quoted: str) -> RecipientReport | None:
    """Microsoft's junk mail reports name who complains in a header, mostly of the message that they return; AOL's and
    SpamCop's name no one.
    """
    named = parts.header(message, _JUNK_REPORTER) or next(iter(_JUNK_REPORT.findall(quoted)), "")
    is_aol = "scomp" in parts.header(message, "X-Loop").lower()
    is_spamcop = _SPAMCOP.search(parts.header(message, "From")) is not None and "[ Offending message ]" in quoted
    if not (named or is_aol or is_spamcop):
        return None
    return RecipientReport(action="complained", addresses=tuple(dict.fromkeys(parts.addresses(named))))


def reported_recipients(message: MimePart) -> list[RecipientReport]:
    """What a delivery status says of each recipient; none if the message holds no such part."""
    reports = []
    for part in parts.walk(message):
        label = part.get_content_type()
        if label in _LABELS or (label == "text/plain" and "final-recipient:" in parts.text(part).lower()):
            reports += [report for group in parts.fields(part) if (report := _recipient_report(group)) is not None]
    return list(dict.fromkeys(reports))[:_RECIPIENTS_MAX]


def _recipient_report(group: Mapping[str, str]) -> RecipientReport | None:
    named = [group[name] for name in _RECIPIENT_FIELDS if name in group]
    if not named:
        return None
    diagnostic = _diagnostic(group.get("diagnostic-code", "") or group.get("x-supplementary-info", ""))
    if not diagnostic and not _STATUS.search(group.get("status", "")):
        diagnostic = _diagnostic(group.get("status", ""))  # `553 Exceeded maximum inbound message size`
    status = _STATUS.search(group.get("status", "")) or _STATUS.search(diagnostic)
    action = _action_of(group.get("action", ""), status[1] if status is not None else None)
    if action is None:
        return None
    addresses = [address for value in named if (address := parts.address(value)) is not None]
    return RecipientReport(
        action=action,
        addresses=tuple(dict.fromkeys(addresses)),
        status=status[1] if status is not None else None,
        diagnostic=diagnostic,
    )


def _action_of(word: str, status: str | None) -> Action | None:
    """By its word; without one, or with an unknown one, a 5.x.x status is a failure, and all else is left alone."""
    match = re.match(r"[a-z]+", word.strip().lower())
    action = _ACTIONS.get(match[0]) if match is not None else None
    return action or ("failed" if status is not None and status.startswith("5") else None)


def _diagnostic(value: str) -> str:
    """A diagnostic without its type: `smtp; 550 5.1.1 no such user`."""
    kind, semicolon, rest = value.partition(";")
    words = rest if semicolon and re.fullmatch(r"[\w.-]{1,30}", kind.strip()) else value
    return " ".join(words.split())[:_DIAGNOSTIC_CHARS_MAX]


def read_report(data: bytes, *, came_to: str = "") -> ReturnedReport | None:
    """The report that these bytes are; None for any other message. Raises nothing, whatever they are.

    Args:
        data: the message as it was received; the first MiB is read.
        came_to: the address that it was delivered to, where something beside the message says so.
    """
    try:
        return _read(data, came_to)
    except (
        MessageError,
        RecursionError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
    ):  # nested, or bent past what is read
        return None


def _read(data: bytes, came_to: str) -> ReturnedReport | None:
    message = parts.parse(data)
    quoted = _quoted(message)
    form, recipients = _recipients(message, quoted)
    if not recipients:
        return None
    return ReturnedReport(
        form=form,
        recipients=tuple(recipients),
        text="\n".join([came_to, *(str(value) for name in _CAME_TO for value in message.get_all(name, [])), quoted]),
        message_ids=_message_ids(message, quoted),
        identity=_identity(message, recipients),
        at=_date(message),
    )


def _recipients(message: MimePart, quoted: str) -> tuple[Form, list[RecipientReport]]:
    complaints = complaining_recipients(message)
    if complaints:
        return "arf", complaints
    complaint = _other_complaint(message, quoted)
    if complaint is not None:
        return "fbl", [complaint]
    if _is_another_report(message):
        return "dsn", []
    reports = [_reasoned(message, report) for report in reported_recipients(message)]
    return "dsn", reports or prose.recipients(message)


def _reasoned(message: MimePart, report: RecipientReport) -> RecipientReport:
    """A failure whose fields give no reason (OpenSMTPD's 5.0.0) has it from the words above them."""
    if report.action != "failed" or report.diagnostic or not (report.status or ".0.0").endswith(".0.0"):
        return report
    words = prose.reason(message, report.addresses)
    if words is None:
        return report
    return replace(report, status=words.status or report.status, diagnostic=words.diagnostic)


def _is_another_report(message: MimePart) -> bool:
    """Read receipts (RFC 8098), TLS and DMARC reports, complaints that are none, and what answers by itself."""
    if any(part.get_content_type() in ("message/disposition-notification", "message/feedback-report")
           for part in parts.walk(message)):  # fmt: skip
        return True
    report_type = str(message.get_param("report-type", "") or "").lower()
    return message.get_content_type() == "multipart/report" and report_type not in ("", "delivery-status")


def _quoted(message: MimePart) -> str:
    """What the report has of the message that came back: its headers, and the texts in which they may be quoted."""
    pieces = []
    for part in parts.walk(message):
        label = part.get_content_type()
        if part is not message and label in _RETURNED and part.is_multipart():
            pieces += ["\n".join(f"{name}: {value}" for name, value in entity.items()) for entity in _inner(part)]
        elif not part.is_multipart() and part.get_content_maintype() in ("text", "message"):
            pieces.append(parts.text(part))
    return "\n".join(pieces)


def _inner(part: MimePart) -> list[MimePart]:
    payload = part.get_payload()
    return [entity for entity in payload if isinstance(entity, MimePart)] if isinstance(payload, list) else []


def _message_ids(message: MimePart, quoted: str) -> tuple[str, ...]:
    ids = _QUOTED_ID.findall(quoted)
    for name in ("In-Reply-To", "References", "X-Original-Message-ID", "X-MS-Original-Message-ID"):
        ids += _MESSAGE_ID.findall(parts.header(message, name))
    return tuple(dict.fromkeys(ids))[:_IDS_MAX]


def _date(message: MimePart) -> datetime | None:
    try:
        date = parsedate_to_datetime(parts.header(message, "Date"))
        return date.replace(tzinfo=date.tzinfo or UTC).astimezone(UTC)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def _identity(message: MimePart, recipients: list[RecipientReport]) -> str:
    """By what its writer set, not by what servers on the way add; the same report twice is one."""
    own = [parts.header(message, "Message-ID"), parts.header(message, "Date"), parts.subject(message)]
    about = ["\0".join((report.action, report.status or "", *report.addresses)) for report in recipients]
    return hashlib.sha256("\n".join((*own, *about)).encode(errors="replace")).hexdigest()[:32]


class ReportUnreadableError(Exception):
    """The process that read the message ended: its time was over, or it was killed."""


class ReportReader:
    """Reads one message after the other. `close` it.

    The process is started for the first of them, and again after one that it did not survive. The kernel ends it when a
    message has taken `cpu_seconds` of the processor, whatever code it runs at that moment.
    """

    def __init__(self, cpu_seconds: float | None = None) -> None:
        self._cpu_seconds = CPU_SECONDS if cpu_seconds is None else cpu_seconds
        self._process: subprocess.Popen[bytes] | None = None

    def read(self, data: bytes, *, came_to: str = "") -> ReturnedReport | None:
        """As `read_report`.

        Raises:
            ReportUnreadableError: the message took too long, or something ended the process meanwhile.
        """
        if self._process is None:
            command = [sys.executable, "-P", "-c", _MAIN, str(self._cpu_seconds)]
            environment = {name: value for name, value in os.environ.items() if not name.startswith("EFFECTS_")}
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
            self._process = subprocess.Popen(  # noqa: S603 - Python itself, without our keys
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        question = msgspec.msgpack.encode((data, came_to.encode("utf-8", "replace").decode()))
        try:
            _write_frame(self._process.stdin, question)
            answer = _read_frame(self._process.stdout)
        except OSError:  # it ended while it was written to
            answer = None
        if answer is None:
            self.close()
            raise ReportUnreadableError
        return msgspec.msgpack.decode(answer, type=ReturnedReport | None)

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            with suppress(OSError):  # what was not written is of no use to anyone
                self._process.communicate()
            self._process = None


def main() -> None:
    """The process itself: messages on standard input, what they are on standard output."""
    while (question := _read_frame(sys.stdin.buffer)) is not None:
        data, came_to = msgspec.msgpack.decode(question, type=tuple[bytes, str])
        signal.setitimer(signal.ITIMER_PROF, float(sys.argv[1]))  # begins again with each message
        _write_frame(sys.stdout.buffer, msgspec.msgpack.encode(read_report(data, came_to=came_to)))


def _write_frame(stream: IO[bytes], frame: bytes) -> None:
    stream.write(len(frame).to_bytes(_LENGTH_BYTES, "big") + frame)
    stream.flush()


def _read_frame(stream: IO[bytes]) -> bytes | None:
    """The next frame; None at the end of the stream."""
    length = int.from_bytes(stream.read(_LENGTH_BYTES), "big")
    frame = stream.read(length)
    return frame if length and len(frame) == length else None
