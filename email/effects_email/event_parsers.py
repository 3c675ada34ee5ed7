"""From a provider's JSON to an IncomingEvent. None: nothing that we keep (an opened message, a click, a test)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeAlias

from effects.extend import is_printable
from effects_email.events import EventKind, IncomingEvent
from effects_email.transport.postmark import METADATA
from effects_email.transport.resend import COUNT_TAG, TAG

Reading: TypeAlias = Callable[[str, Mapping[str, Any]], IncomingEvent | None]

_CODE = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_REFERENCE = re.compile(r"[0-9a-f]{32}")
_NAMED = re.compile(r"<([^<>]+)>\s*\Z")


class NotAnEvent(ValueError):
    """The body is not in the provider's form."""


# -- Resend --------------------------------------------------------------------------------------------------------

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
        kind = "bounced_soft" if words[0].lower() in _SOFT_BOUNCES else kind
    tags = _tags(data.get("tags"))
    return IncomingEvent(
        provider="resend",
        provider_event_id=provider_event_id,
        kind=kind,
        code=_code(code),
        reference=_reference(tags.get(TAG)),
        provider_id=_code(data.get("email_id")),
        recipient=_only(data.get("to"), tags.get(COUNT_TAG)),
        at=_time(document.get("created_at")),
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
    return _address(to[0])


# -- Postmark ------------------------------------------------------------------------------------------------------

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
_REASONS: Mapping[str, EventKind] = {"HardBounce": "bounced_hard", "SpamComplaint": "complained"}
# Answers of people and machines to a message that did arrive.
_NO_BOUNCES = ("AutoResponder", "AddressChange", "ChallengeVerification", "Subscribe", "OpenRelayTest")
_TIMES = ("DeliveredAt", "BouncedAt", "ChangedAt", "ReceivedAt")


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
        kind = _REASONS.get(code, kind)
    metadata = document.get("Metadata")
    at = next((document[name] for name in _TIMES if document.get(name)), None)
    recipient = _address(document.get("Email") or document.get("Recipient"))
    return IncomingEvent(
        provider="postmark",
        provider_event_id=_postmark_id(record, document, recipient, at),
        kind=kind,
        code=_code(code),
        reference=_reference(metadata.get(METADATA)) if isinstance(metadata, Mapping) else None,
        provider_id=_code(document.get("MessageID")),
        recipient=recipient,
        at=_time(at),
    )


def _postmark_id(record: str, document: Mapping[str, Any], recipient: str | None, at: object) -> str:
    number = document.get("ID")
    if isinstance(number, int) and not isinstance(number, bool):
        return f"{record}:{number}"
    said = "\0".join(str(part) for part in (record, document.get("MessageID"), recipient, at))
    return f"{record}:{hashlib.sha256(said.encode(errors='replace')).hexdigest()[:32]}"


# -- both ----------------------------------------------------------------------------------------------------------


def _address(value: object) -> str | None:
    if not isinstance(value, str) or "@" not in value or len(value) > 1000 or not is_printable(value):
        return None
    named = _NAMED.search(value)
    return named.group(1) if named else value.strip()


def _code(value: object) -> str | None:
    """A provider's keyword, if it is well-formed, since it is stored and shown."""
    return value if isinstance(value, str) and _CODE.fullmatch(value) else None


def _reference(value: object) -> str | None:
    return value if isinstance(value, str) and _REFERENCE.fullmatch(value) else None


def _time(value: object) -> datetime | None:
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment
