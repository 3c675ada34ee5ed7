"""Events of Mailgun."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from effects_email.events import EventKind, IncomingEvent
from effects_email.providers.event_fields import NotAnEvent, address, keyword, mapping, reference, time_of
from effects_email.transport.http_api.fields import reference as reference_of
from effects_email.transport.http_api.mailgun import VARIABLE

_KINDS: Mapping[str, EventKind] = {
    "accepted": "accepted",
    "delivered": "delivered",
    "failed": "bounced_soft",
    "rejected": "failed",
    "complained": "complained",
    "unsubscribed": "unsubscribed",
}
# By the reason of a permanent failure. Of the others the address is not to blame.
_REASONS: Mapping[str, EventKind] = {
    "bounce": "bounced_hard",
    "suppress-bounce": "bounced_hard",
    "suppress-complaint": "complained",
    "suppress-unsubscribe": "unsubscribed",
}
_MESSAGE_ID_CHARS_MAX = 998


def read_mailgun(provider_event_id: str, document: object) -> Sequence[IncomingEvent]:
    """The event of one request, if it is one that we keep; `provider_event_id` is ignored, it has its own.

    Raises:
        NotAnEvent: it has another form.
    """
    event = mapping(mapping(document).get("event-data"))
    name, event_id = event.get("event"), keyword(event.get("id"))
    if not isinstance(name, str) or event_id is None:
        raise NotAnEvent
    kind, code = _KINDS.get(name), name
    if kind is None:
        return []
    if name == "failed":
        reason = str(event.get("reason") or "")
        code = f"{event.get('severity')}_{reason}"
        kind = "delayed" if event.get("severity") == "temporary" else _REASONS.get(reason, kind)
    return [_incoming(event, event_id, kind, code)]


def _incoming(event: Mapping[str, Any], event_id: str, kind: EventKind, code: str) -> IncomingEvent:
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
