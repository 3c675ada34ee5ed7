"""From the bytes of a message to the report that it is, or to None: what people and machines reply is left alone."""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime
from email.errors import MessageError
from email.message import Message as MimePart
from email.utils import parsedate_to_datetime

from msgspec.structs import replace

from effects_email.returned import dsn, feedback, parts, prose
from effects_email.returned.report import Form, RecipientReport, ReturnedReport

# Where a report came to, as the last server wrote it.
_CAME_TO = ("X-Original-To", "Delivered-To", "Envelope-To", "X-Envelope-To", "To", "X-Rcpt-To")
# Ours are visible ASCII, and what is asked for goes to the database, which takes no NUL.
_MESSAGE_ID = re.compile(r"<([!-;=?-~]{1,250}@[!-;=?-~]{1,250})>")
_QUOTED_ID = re.compile(r"^[> \t]*Message-ID:\s*<([!-;=?-~]{1,500})>", re.IGNORECASE | re.MULTILINE)
_RETURNED = ("message/rfc822", "text/rfc822-headers", "message/rfc822-headers", "message/global",
             "message/global-headers")  # fmt: skip
_IDS_MAX = 10


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
    form, recipients = _recipients(message)
    if not recipients:
        return None
    quoted = _quoted(message)
    return ReturnedReport(
        form=form,
        recipients=tuple(recipients),
        text="\n".join([came_to, *(str(value) for name in _CAME_TO for value in message.get_all(name, [])), quoted]),
        message_ids=_message_ids(message, quoted),
        identity=_identity(message, recipients),
        at=_date(message),
    )


def _recipients(message: MimePart) -> tuple[Form, list[RecipientReport]]:
    complaints = feedback.recipients(message)
    if complaints:
        return "arf", complaints
    if _is_another_report(message):
        return "dsn", []
    reports = [_reasoned(message, report) for report in dsn.recipients(message)]
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
