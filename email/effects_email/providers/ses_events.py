"""Events of Amazon SES, which come by SNS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from effects_email.events import EventKind, IncomingEvent
from effects_email.providers.event_fields import OF_MESSAGE, NotAnEvent, address, keyword, mapping, reference, time_of
from effects_email.transport.http_api.ses import TAG

_KINDS: Mapping[str, EventKind] = {
    "Send": "accepted",
    "Delivery": "delivered",
    "DeliveryDelay": "delayed",
    "Bounce": "bounced_soft",
    "Complaint": "complained",
    "Reject": "failed",
    "Rendering Failure": "failed",
}
# Of each kind, the object that has its time and its recipients, and the name of these.
_PLACES = {
    "Delivery": ("delivery", "recipients"),
    "DeliveryDelay": ("deliveryDelay", "delayedRecipients"),
    "Bounce": ("bounce", "bouncedRecipients"),
    "Complaint": ("complaint", "complainedRecipients"),
}


def read_ses(provider_event_id: str, document: object) -> Sequence[IncomingEvent]:
    """The events of one notification, one for each recipient that it names.

    A complaint may name everybody at a domain: where it names several, none is held to have complained.

    Args:
        provider_event_id: SNS's id of the message.

    Raises:
        NotAnEvent: it has another form.
    """
    name = mapping(document).get("eventType") or mapping(document).get("notificationType")
    if not isinstance(name, str):
        raise NotAnEvent
    kind = _KINDS.get(name)
    if kind is None:
        return []
    place, names = _PLACES.get(name, ("", ""))
    about = mapping(mapping(document).get(place))
    code = name.replace(" ", "_")
    if name == "Bounce":
        if about.get("bounceType") == "Permanent":
            kind = "bounced_hard"
        elif about.get("bounceSubType") in OF_MESSAGE:
            kind = "failed"
        code = f"{about.get('bounceType')}_{about.get('bounceSubType')}"
    recipients = [_recipient(each) for each in _list(about.get(names))]
    if not recipients or (name == "Complaint" and len(recipients) > 1):
        recipients = [None]
    return [
        _event(mapping(document), f"{provider_event_id}:{number}", kind, code, recipient, about.get("timestamp"))
        for number, recipient in enumerate(recipients)
    ]


def _event(
    document: Mapping[str, Any], event_id: str, kind: EventKind, code: str, recipient: str | None, at: object
) -> IncomingEvent:
    mail = mapping(document.get("mail"))
    tags = _list(mapping(mail.get("tags")).get(TAG))
    return IncomingEvent(
        provider="ses",
        provider_event_id=event_id,
        kind=kind,
        code=keyword(code),
        reference=reference(tags[0]) if tags else None,
        provider_id=keyword(mail.get("messageId")),
        recipient=recipient,
        at=time_of(at) or time_of(mail.get("timestamp")),
    )


def _recipient(value: object) -> str | None:
    return address(value if isinstance(value, str) else mapping(value).get("emailAddress"))


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def document_of(text: str) -> object:
    """The notification in a message of SNS.

    Raises:
        NotAnEvent: it is no JSON.
    """
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise NotAnEvent from None
