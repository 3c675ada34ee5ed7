"""From the JSON of Resend, Postmark, SendGrid and Mailgun to IncomingEvents; None for what is not kept.

Fields of any provider's JSON are taken only where they are well-formed: they are stored and shown.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from effects.extend.text import is_printable, moment
from effects_email.events import EventKind, IncomingEvent
from effects_email.transport.http_api.fields import reference as reference_of
from effects_email.transport.http_api.mailgun import VARIABLE
from effects_email.transport.http_api.postmark import METADATA
from effects_email.transport.http_api.resend import COUNT_TAG, TAG
from effects_email.transport.http_api.sendgrid import ARGUMENT

CODE = re.compile(r"[A-Za-z0-9_.-]{1,64}")
REFERENCE = re.compile(r"[0-9a-f]{32}")
# Why Amazon SES calls a bounce transient that is about the message, and no fault of the address; Resend sends by SES.
OF_MESSAGE = ("MessageTooLarge", "ContentRejected", "AttachmentRejected")
_NAMED = re.compile(r"<([^<>]+)>\s*\Z")
_RESEND: Mapping[str, EventKind] = {
    "email.sent": "accepted",
    "email.delivered": "delivered",
    "email.delivery_delayed": "delayed",
    "email.bounced": "bounced_hard",
    "email.complained": "complained",
    "email.suppressed": "bounced_hard",  # Resend did not send: the address bounced or complained before
    "email.failed": "failed",
}
_SOFT_BOUNCES = ("transient", "undetermined")
_POSTMARK: Mapping[str, EventKind] = {
    "Delivery": "delivered",
    "Bounce": "bounced_soft",
    "SpamComplaint": "complained",
    "SubscriptionChange": "unsubscribed",
}
# By the Type of a bounce. Other types mean that a message was refused, and do not concern the address.
_BOUNCES: Mapping[str, EventKind] = {
    "HardBounce": "bounced_hard",
    "BadEmailAddress": "bounced_hard",
    "ManuallyDeactivated": "bounced_hard",
    "SoftBounce": "bounced_soft",
    "Transient": "delayed",
    "DnsError": "delayed",
    "SpamComplaint": "complained",
    "Unsubscribe": "unsubscribed",
}
_POSTMARK_REASONS: Mapping[str, EventKind] = {"HardBounce": "bounced_hard", "SpamComplaint": "complained"}
# Answers of people and machines to a message that did arrive.
_NO_BOUNCES = ("AutoResponder", "AddressChange", "ChallengeVerification", "Subscribe", "OpenRelayTest")
_TIMES = ("DeliveredAt", "BouncedAt", "ChangedAt", "ReceivedAt")
_SENDGRID: Mapping[str, EventKind] = {
    "processed": "accepted",
    "delivered": "delivered",
    "deferred": "delayed",
    "bounce": "bounced_hard",
    "dropped": "failed",
    "spamreport": "complained",
    "unsubscribe": "unsubscribed",
    "group_unsubscribe": "unsubscribed",
}
# Why SendGrid did not send, by its reason's first word; of others nothing follows for the address.
_DROPPED: Mapping[str, EventKind] = {
    "bounced": "bounced_hard", "invalid": "bounced_hard", "spam": "complained", "unsubscribed": "unsubscribed",
}  # fmt: skip
_EVENT_ID = re.compile(r"[A-Za-z0-9_.=-]{1,100}")  # base64url of 100 characters at most, as SendGrid documents it
_MAILGUN: Mapping[str, EventKind] = {
    "accepted": "accepted",
    "delivered": "delivered",
    "failed": "bounced_soft",
    "rejected": "failed",
    "complained": "complained",
    "unsubscribed": "unsubscribed",
}
# By the reason of a permanent failure. Of the others the address is not to blame.
_MAILGUN_REASONS: Mapping[str, EventKind] = {
    "bounce": "bounced_hard",
    "suppress-bounce": "bounced_hard",
    "suppress-complaint": "complained",
    "suppress-unsubscribe": "unsubscribed",
}
_MESSAGE_ID_CHARS_MAX = 998


class NotAnEvent(ValueError):
    """The body is not in the provider's form."""


def mapping(value: object) -> Mapping[str, object]:
    """The object, or an empty one in the place of anything else."""
    return value if isinstance(value, Mapping) else {}


def address(value: object) -> str | None:
    """The address, without a name before it."""
    if not isinstance(value, str) or "@" not in value or len(value) > 1000 or not is_printable(value):
        return None
    named = _NAMED.search(value)
    return named.group(1) if named else value.strip()


def keyword(value: object) -> str | None:
    """A provider's keyword, if it is well-formed, since it is stored and shown."""
    return value if isinstance(value, str) and CODE.fullmatch(value) else None


def reference(value: object) -> str | None:
    """A reference of ours, see `transport.fields`."""
    return value if isinstance(value, str) and REFERENCE.fullmatch(value) else None


def time_of(value: object) -> datetime | None:
    """A moment in ISO 8601, or in seconds since 1970; without a time zone it is UTC."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e11:
        return moment(value)
    try:
        at = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return at.replace(tzinfo=UTC) if at is not None and at.tzinfo is None else at


# -- Resend --------------------------------------------------------------------------------------------------------


def read_resend(provider_event_id: str, document: Mapping[str, Any]) -> IncomingEvent | None:
    """An event of Resend; `provider_event_id` is the signed id of its request.

    For a message to several recipients Resend does not name the affected one, so the event suppresses none.

    Raises:
        NotAnEvent: it has another form.
    """
    data = document.get("data")
    if not isinstance(document.get("type"), str) or not isinstance(data, Mapping):
        raise NotAnEvent
    kind = _RESEND.get(document["type"])
    if kind is None:
        return None
    code = document["type"]
    bounce = data.get("bounce")
    if kind == "bounced_hard" and isinstance(bounce, Mapping):
        words = [str(bounce.get(name) or "") for name in ("type", "subType")]
        code = "_".join(word for word in words if word) or code
        if words[0].lower() in _SOFT_BOUNCES:
            kind = "failed" if words[1] in OF_MESSAGE else "bounced_soft"
    tags = _tags(data.get("tags"))
    return IncomingEvent(
        provider="resend",
        provider_event_id=provider_event_id,
        kind=kind,
        code=keyword(code),
        reference=reference(tags.get(TAG)),
        provider_id=keyword(data.get("email_id")),
        recipient=_only(data.get("to"), tags.get(COUNT_TAG)),
        at=time_of(document.get("created_at")),
    )


def _tags(tags: object) -> Mapping[str, object]:
    """As an object, or as the list of pairs in which they were sent."""
    if isinstance(tags, Mapping):
        return tags
    pairs = tags if isinstance(tags, list) else []
    return {str(tag.get("name")): tag.get("value") for tag in pairs if isinstance(tag, Mapping)}


def _only(to: object, count: object) -> str | None:
    if isinstance(to, str):
        to = [to]
    if not isinstance(to, list) or len(to) != 1 or count not in (None, "1"):
        return None
    return address(to[0])


# -- Postmark ------------------------------------------------------------------------------------------------------


def read_postmark(provider_event_id: str, document: Mapping[str, Any]) -> IncomingEvent | None:
    """An event of Postmark, which gives no ids: `provider_event_id` is ignored, and derived from the event's contents.

    Raises:
        NotAnEvent: it has another form.
    """
    record, kind_of = document.get("RecordType"), str(document.get("Type") or "")
    if not isinstance(record, str):
        raise NotAnEvent
    kind = _POSTMARK.get(record)
    if kind is None or kind_of in _NO_BOUNCES:
        return None
    code = kind_of or record
    if record == "Bounce":
        kind = (
            "bounced_hard"
            if document.get("Inactive") is True and kind_of != "SpamComplaint"
            else _BOUNCES.get(kind_of, "failed")
        )
    elif record == "SubscriptionChange":
        if document.get("SuppressSending") is not True:
            return None  # Postmark's reactivation; the suppression list decides here
        code = str(document.get("SuppressionReason") or record)
        kind = _POSTMARK_REASONS.get(code, kind)
    metadata = document.get("Metadata")
    at = next((document[name] for name in _TIMES if document.get(name)), None)
    recipient = address(document.get("Email") or document.get("Recipient"))
    return IncomingEvent(
        provider="postmark",
        provider_event_id=_postmark_id(record, document, recipient, at),
        kind=kind,
        code=keyword(code),
        reference=reference(metadata.get(METADATA)) if isinstance(metadata, Mapping) else None,
        provider_id=keyword(document.get("MessageID")),
        recipient=recipient,
        at=time_of(at),
    )


def _postmark_id(record: str, document: Mapping[str, Any], recipient: str | None, at: object) -> str:
    number = document.get("ID")
    if isinstance(number, int) and not isinstance(number, bool):
        return f"{record}:{number}"
    said = "\0".join(str(part) for part in (record, document.get("MessageID"), recipient, at))
    return f"{record}:{hashlib.sha256(said.encode(errors='replace')).hexdigest()[:32]}"


# -- SendGrid: a request holds many events -----------------------------------------------------------------------------


def read_sendgrid(provider_event_id: str, document: object) -> Sequence[IncomingEvent]:
    """The events of one request that we keep; `provider_event_id` is ignored, each has its own. One that has none is
    known by its contents, so that it does not keep the others of the request away.

    Raises:
        NotAnEvent: it has another form.
    """
    if not isinstance(document, list) or not all(isinstance(event, Mapping) for event in document):
        raise NotAnEvent
    read = [_sendgrid_event(event) for event in document]
    return [event for event in read if event is not None]


def _sendgrid_event(document: Mapping[str, Any]) -> IncomingEvent | None:
    name = document.get("event")
    if not isinstance(name, str):
        raise NotAnEvent
    kind = _SENDGRID.get(name)
    if kind is None:
        return None
    code = name
    if name == "bounce" and document.get("type") == "blocked":
        kind, code = "bounced_soft", "blocked"
    elif name == "dropped":
        first = str(document.get("reason") or "").partition(" ")[0].lower()
        kind, code = _DROPPED.get(first, kind), f"dropped_{first}" if first in _DROPPED else name
    return IncomingEvent(
        provider="sendgrid",
        provider_event_id=_sendgrid_id(document),
        kind=kind,
        code=keyword(code),
        reference=reference(document.get(ARGUMENT)),
        provider_id=keyword(str(document.get("sg_message_id") or "").partition(".")[0]),
        recipient=address(document.get("email")),
        at=time_of(document.get("timestamp")),
    )


def _sendgrid_id(document: Mapping[str, Any]) -> str:
    event_id = document.get("sg_event_id")
    if isinstance(event_id, str) and _EVENT_ID.fullmatch(event_id):
        return event_id
    names = ("event", "email", "timestamp", "sg_message_id", ARGUMENT, "sg_event_id")
    contents = "\0".join(str(document.get(name)) for name in names)
    return f"contents:{hashlib.sha256(contents.encode()).hexdigest()[:32]}"


# -- Mailgun -----------------------------------------------------------------------------------------------------------


def read_mailgun(provider_event_id: str, document: object) -> Sequence[IncomingEvent]:
    """The event of one request, if it is one that we keep; `provider_event_id` is ignored, it has its own.

    Raises:
        NotAnEvent: it has another form.
    """
    event = mapping(mapping(document).get("event-data"))
    name, event_id = event.get("event"), keyword(event.get("id"))
    if not isinstance(name, str) or event_id is None:
        raise NotAnEvent
    kind, code = _MAILGUN.get(name), name
    if kind is None:
        return []
    if name == "failed":
        reason = str(event.get("reason") or "")
        code = f"{event.get('severity')}_{reason}"
        kind = "delayed" if event.get("severity") == "temporary" else _MAILGUN_REASONS.get(reason, kind)
    return [_mailgun_event(event, event_id, kind, code)]


def _mailgun_event(event: Mapping[str, Any], event_id: str, kind: EventKind, code: str) -> IncomingEvent:
    message_id = mapping(mapping(event.get("message")).get("headers")).get("message-id")
    is_id = isinstance(message_id, str) and 0 < len(message_id) <= _MESSAGE_ID_CHARS_MAX
    ours = reference(mapping(event.get("user-variables")).get(VARIABLE))
    return IncomingEvent(
        provider="mailgun",
        provider_event_id=event_id,
        kind=kind,
        code=keyword(code),
        reference=ours or (reference_of(str(message_id).strip("<>")) if is_id else None),
        provider_id=None,
        recipient=address(event.get("recipient")),
        at=time_of(event.get("timestamp")),
    )
