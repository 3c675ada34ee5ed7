"""From the JSON of Resend and of Postmark to an IncomingEvent. None: nothing that we keep (an opened message)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from effects_email.events import EventKind, IncomingEvent
from effects_email.providers.event_fields import OF_MESSAGE, NotAnEvent, address, keyword, reference, time_of
from effects_email.transport.http_api.postmark import METADATA
from effects_email.transport.http_api.resend import COUNT_TAG, TAG

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
