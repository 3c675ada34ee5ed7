"""Forgetting a person: what is kept of an address goes, and what must not be lost stays without it.

Of a message to that address alone the words, files and the recipient are deleted; its row stays, with key, state and
hash: the same call again is still the same message, and an unknown outcome stays one. A message to a group loses the
address, not the words that others got. Suppressions stay, by digest alone: who asked for no mail gets none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from functools import partial

import msgspec
from sqlalchemy import Connection

from effects import Effects, cancel
from effects.extend import AuditAction, app_of, arguments, note
from effects_email.errors import AttachmentMissing, EmailInvalid
from effects_email.message import attached_bytes
from effects_email.message.address import Recipient, normal_form
from effects_email.message.attachments import is_invitation
from effects_email.message.invite import without_attendees
from effects_email.message.source import FORGOTTEN, Address, Attachment, StoredContent, open_content, seal_content
from effects_email.personal.whose import digests_of
from effects_email.tables import personal as table
from effects_email.tables import soft_failures
from effects_email.writing import JOB_TYPE

_FORGET = AuditAction("address", "forget")


class Forgotten(msgspec.Struct, frozen=True, kw_only=True):
    """What was forgotten. `waiting`: the keys of messages that are still to be sent; forget again when they ended."""

    messages: int
    cancelled: int  # of those
    files: int
    events: int
    suppressions: int  # that hold on, by digest
    waiting: tuple[str, ...] = ()


@arguments.checked(EmailInvalid, **arguments.ACTING)
def forget_address(
    address: Recipient, *, actor: str, reason: str | None = None, effects: Effects | None = None
) -> Forgotten:
    """Forget what is kept of an address. See email/README.md for what stays.

    A message that waits to be sent is cancelled: it could not be sent without its address. Two cannot be forgotten
    yet, and are in `waiting`: one that is being sent now, and one to a group that is still to be sent, which belongs
    to the others as well.

    Args:
        address: one address, as of `send_templated_email`.
        actor, reason: for the audit log, whose row names the address by its digest. `reason` must not name it.
        effects: the Effects to use; default the process's.

    Raises:
        AddressInvalid: it is no address.
        KeyUnavailable: a key is missing with which its rows were written; messages before that one are forgotten.
        StoreUnavailable: the database is unavailable.

    Each message is one transaction, after that of the audit row and of all that is no message. A crash leaves the rest
    as it was; calling again goes on there.
    """
    app = app_of(effects)
    with app.store.begin() as connection:
        digests = digests_of(app, connection, address)
        keys = table.keys(app.store, connection, digests)
        events, suppressions = table.blank_address(app.store, connection, digests, gone=_gone(digests))
        soft_failures.clear(app.store, connection, digests)
        detail = {"messages": len(keys), "events": events, "suppressions": suppressions}
        note(app.store, connection, _FORGET, digests[0], actor=actor, reason=reason, detail=detail)
    messages = cancelled = files = 0
    waiting = []
    for key in keys:
        fate = _forget_message(app, key, digests, actor, reason)
        if fate is None:
            waiting.append(key)
            continue
        messages, cancelled, files = messages + 1, cancelled + fate.cancelled, files + fate.files
    return Forgotten(
        messages=messages, cancelled=cancelled, files=files, events=events, suppressions=suppressions,
        waiting=tuple(waiting),
    )  # fmt: skip


class _Fate(msgspec.Struct, frozen=True):
    files: int = 0
    cancelled: bool = False


def _forget_message(app: Effects, key: str, digests: Sequence[str], actor: str, reason: str | None) -> _Fate | None:
    """None where it is still to be sent."""
    with app.store.begin() as connection:
        is_shared = any(place.others for place in table.places(app.store, connection, key, digests))
        cancelled = False
        if not is_shared:
            answer = cancel(
                key=key, job_type=JOB_TYPE, actor=actor, reason=reason, session=connection, effects=app
            )  # fmt: skip
            cancelled = answer.result == "cancelled"
        row = table.lock(app.store, connection, key)
        if row is None:  # deleted meanwhile, at the end of its retention
            return _Fate()
        if row.live:
            return None
        gone = _gone(digests)
        if not is_shared:
            return _Fate(table.blank(app.store, connection, key, gone=gone), cancelled)
        content = open_content(app, key, row.content, row.sealed)
        clear, sealed = (
            (None, None)
            if content is None
            else seal_content(app, key, _without(app, connection, key, digests, content))
        )
        table.unname(app.store, connection, key, digests, gone=gone, content=clear, sealed=sealed)
    return _Fate()


def _gone(digests: Sequence[str]) -> str:
    """What stands in the place of a recipient's digest; see `sent.is_forgotten`."""
    return f"{digests[0].partition(':')[0]}-forgotten"


def _without(
    app: Effects, connection: Connection, key: str, digests: Sequence[str], content: StoredContent
) -> StoredContent:
    """The content of a message to a group with a blank in the place of an address: the others keep theirs."""
    own = {place.number for place in table.places(app.store, connection, key, digests) if place.own}
    people = [address for _, address in content.source.recipients()]
    addresses = {normal_form(people[number].spec) for number in own}
    left = [FORGOTTEN if number in own else address for number, address in enumerate(people)]
    to, cc, bcc = _divided(left, [len(content.source.to), len(content.source.cc)])
    attachments = tuple(
        _uninvited(app, connection, key, attachment, addresses) if is_invitation(attachment) else attachment
        for attachment in content.source.attachments
    )
    source = msgspec.structs.replace(content.source, to=to, cc=cc, bcc=bcc, attachments=attachments)
    return msgspec.structs.replace(content, source=source)


def _uninvited(
    app: Effects, connection: Connection, key: str, attachment: Attachment, addresses: Collection[str]
) -> Attachment:
    """A calendar invitation without these attendees."""
    change = partial(without_attendees, addresses=addresses)
    try:
        data = attached_bytes.replace(app, connection, key, attachment.sha256, change)
    except AttachmentMissing:
        return attachment
    return msgspec.structs.replace(attachment, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def _divided(people: Sequence[Address], sizes: Sequence[int]) -> list[tuple[Address, ...]]:
    first, second = sizes[0], sizes[0] + sizes[1]
    return [tuple(people[:first]), tuple(people[first:second]), tuple(people[second:])]
