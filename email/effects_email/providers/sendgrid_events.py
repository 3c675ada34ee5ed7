"""Events of SendGrid: a request holds many."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from effects_email.events import EventKind, IncomingEvent
from effects_email.providers.event_fields import NotAnEvent, address, keyword, reference, time_of
from effects_email.transport.http_api.sendgrid import ARGUMENT

_KINDS: Mapping[str, EventKind] = {
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


def read_sendgrid(provider_event_id: str, document: object) -> Sequence[IncomingEvent]:
    """The events of one request that we keep; `provider_event_id` is ignored, each has its own. One that has none is
    known by its contents, so that it does not keep the others of the request away.

    Raises:
        NotAnEvent: it has another form.
    """
    if not isinstance(document, list) or not all(isinstance(event, Mapping) for event in document):
        raise NotAnEvent
    read = [_event(event) for event in document]
    return [event for event in read if event is not None]


def _event(document: Mapping[str, Any]) -> IncomingEvent | None:
    name = document.get("event")
    if not isinstance(name, str):
        raise NotAnEvent
    kind = _KINDS.get(name)
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
        provider_event_id=_id_of(document),
        kind=kind,
        code=keyword(code),
        reference=reference(document.get(ARGUMENT)),
        provider_id=keyword(str(document.get("sg_message_id") or "").partition(".")[0]),
        recipient=address(document.get("email")),
        at=time_of(document.get("timestamp")),
    )


def _id_of(document: Mapping[str, Any]) -> str:
    event_id = document.get("sg_event_id")
    if isinstance(event_id, str) and _EVENT_ID.fullmatch(event_id):
        return event_id
    names = ("event", "email", "timestamp", "sg_message_id", ARGUMENT, "sg_event_id")
    contents = "\0".join(str(document.get(name)) for name in names)
    return f"contents:{hashlib.sha256(contents.encode()).hexdigest()[:32]}"
