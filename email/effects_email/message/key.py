"""The key of a message that was given an event id: by it, the same call again finds the first one's message."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Sequence

from effects import Effects
from effects.extend import optional, printable, require
from effects_email.errors import EmailInvalid
from effects_email.message.address import normal_form
from effects_email.message.source import Address


def key_of(app: Effects, template: str, event_id: str | None, to: Sequence[Address], own: str | None = None) -> str:
    """The caller's own; else of recipients, template and event id; else one that no other call has.

    Keys are shown to operators: of an address there is a digest in it.

    Raises:
        EmailInvalid: the event id or the key is malformed.
    """
    if own is not None:
        key = own
    elif event_id is None:
        key = f"{template}:{uuid.uuid4().hex}"
    else:
        key = _derived(template, event_id, app.keys.digest(_recipients(to)))
    require("event_id", event_id, optional(printable()), EmailInvalid)
    require("the key (of template, event_id and recipient)", key, printable(), EmailInvalid)
    return key


def plain_key_of(app: Effects, template: str, event_id: str, to: Sequence[Address]) -> str:
    """The derived key of a message that was written before there was a `digest` key."""
    return _derived(template, event_id, app.keys.digest(_recipients(to), like="sha256:"))


def _derived(template: str, event_id: str, digest: str) -> str:
    return f"{template}:{event_id}:{hashlib.sha256(digest.encode()).hexdigest()[:16]}"


def _recipients(to: Sequence[Address]) -> str:
    who = "\0".join(sorted(normal_form(address.spec) for address in to))
    return f"email key\0{who}"
