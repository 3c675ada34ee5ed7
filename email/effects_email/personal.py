"""What is kept of one address: exported as a ZIP file, or forgotten.

The file has `index.json`, and each message as it was sent. Of a message to a group there is what this recipient got,
and nothing of the others' results; Bcc is in no message.

Forgetting: of a message to that address alone the words, files and the recipient are deleted; its row stays, with key,
state and hash: the same call again is still the same message, and an unknown outcome stays one. A message to a group
loses the address, not the words that others got. Suppressions stay, by digest alone: who asked for no mail gets none.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, BinaryIO

import msgspec
from sqlalchemy import Connection, Row

from effects import Effects, cancel
from effects.extend.actions import AuditAction, note
from effects.extend.arguments import arguments
from effects.extend.jobs import app_of
from effects.extend.text import moment, moment_or_none
from effects_email.errors import AttachmentMissing, ContentChanged, EmailInvalid
from effects_email.events import events_of
from effects_email.message import attachments
from effects_email.message.address import Recipient, address_digests, normal_form, recipient
from effects_email.message.attachments import Files, is_invitation
from effects_email.message.invite import without_attendees
from effects_email.message.mime import build
from effects_email.message.source import (
    FORGOTTEN,
    Address,
    Attachment,
    MessageSource,
    StoredContent,
    open_content,
    seal_content,
)
from effects_email.suppression import digest_key_missing, find_suppressions, suppression_log
from effects_email.tables import lists as table
from effects_email.tables import sent
from effects_email.tables import suppressions as suppression_table
from effects_email.writing import JOB_TYPE

INDEX = "index.json"
_EXPORT = AuditAction("address", "export")
_LOG_LINES_MAX = 10_000
_DAY_0 = datetime(1970, 1, 1, tzinfo=UTC)
_json = msgspec.json.Encoder()
_FORGET = AuditAction("address", "forget")


def _digests_of(app: Effects, connection: Connection, address: Recipient) -> tuple[str, ...]:
    """Every form under which an address may be stored, today's first.

    Raises:
        AddressInvalid: it is no address.
        KeyUnavailable: rows were written under a `digest` key that is missing: what is kept cannot be found.
    """
    forms = address_digests(app, recipient(address, where="address").spec)
    if not app.keys.digests_are_keyed and (
        sent.has_keyed_digests(app.store, connection) or suppression_table.has_keyed_digests(app.store, connection)
    ):
        raise digest_key_missing("what is kept of this address")
    return forms


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """What was exported. `contents` are the messages whose words are still kept."""

    messages: int
    contents: int
    events: int
    suppressions: int


@arguments.checked(EmailInvalid, file=arguments.writable, **arguments.ACTING)
def export_address(
    address: Recipient, file: BinaryIO, *, actor: str, reason: str | None = None, effects: Effects | None = None
) -> Exported:
    """Write what is kept of an address into a ZIP file. See email/README.md for its form.

    Args:
        address: one address, as of `send_templated_email`.
        file: opened for writing in binary; at most one message of it is in memory.
        actor, reason: for the audit log, whose row names the address by its digest and is written first.
        effects: the Effects to use; default the process's.

    Raises:
        AddressInvalid: it is no address.
        KeyUnavailable: a key is missing with which its rows were written; `file` is incomplete.
        StoreUnavailable: the database is unavailable; `file` is incomplete.

    A crash leaves an incomplete file, which is no ZIP file, and the audit row.
    """
    app = app_of(effects)
    spec = recipient(address, where="address").spec
    with app.store.begin() as connection:
        digests = _digests_of(app, connection, spec)
        keys = table.keys(app.store, connection, digests)
        note(app.store, connection, _EXPORT, digests[0], actor=actor, reason=reason, detail={"messages": len(keys)})
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        messages = list(_messages(app, archive, keys, digests))
        beside = _beside(app, spec, digests)
        index = {"address": spec, "exported_at": datetime.now(UTC), "messages": messages, **beside}
        archive.writestr(INDEX, msgspec.json.format(_json.encode(index), indent=2))
    contents = sum(message["file"] is not None for message in messages)
    return Exported(
        messages=len(messages),
        contents=contents,
        events=len(beside["events"]),
        suppressions=len(beside["suppressions"]),
    )


def _beside(app: Effects, spec: str, digests: Sequence[str]) -> dict[str, list[Any]]:
    """What is kept beside messages."""
    with app.store.read() as connection:
        events = table.events(app.store, connection, digests)
        failures = table.failures(app.store, connection, digests)
    return {
        "events": [
            {
                "provider": row.provider, "kind": row.kind, "code": row.code, "message": row.reference,
                "at": moment_or_none(row.at), "heard_at": moment(row.created_at),
            }
            for row in events
        ],
        "suppressions": [
            {name: getattr(held, name) for name in ("scope", "reason", "source", "until", "actor", "why", "created_at")}
            for held in find_suppressions(spec, effects=app)
        ],
        "suppression_log": suppression_log(spec, limit=_LOG_LINES_MAX, effects=app),
        "soft_failures": [
            {"day": f"{_DAY_0 + timedelta(days=row.day):%Y-%m-%d}", "failures": int(row.failures)} for row in failures
        ],
    }  # fmt: skip


def _messages(
    app: Effects, archive: zipfile.ZipFile, keys: Sequence[str], digests: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """The facts of each message; its bytes go into the archive."""
    for number, key in enumerate(keys, 1):
        with app.store.read() as connection:
            row = sent.find(app.store, connection, key)
            places = table.places(app.store, connection, key, digests)
        if row is None:  # deleted meanwhile
            continue
        content = open_content(app, key, row.content, row.sealed)
        name = None
        attachments: list[dict[str, Any]] = []
        if content is not None:
            name, (data, attachments) = f"messages/{number:06}.eml", _bytes(app, key, content.source)
            archive.writestr(name, data)
        own = [place for place in places if place.own]
        yield {
            **_facts(app, row, own),
            "file": name,
            "attachments": attachments,
            **_words(content, is_shared=any(place.others for place in places)),
        }


def _facts(app: Effects, row: Row[Any], own: Sequence[Row[Any]]) -> dict[str, Any]:
    """What is on record of a message, as far as it is this recipient's."""
    return {
        **{name: getattr(row, name) for name in ("key", "message_id", "template", "locale", "category", "transport")},
        "status": row.state,
        "as": own[0].kind if own else "to",
        "outcome": own[0].outcome if own else row.outcome,
        "code": own[0].code if own else row.reply_code,
        "attempts": row.tries,
        "date": moment(row.date),
        "created_at": moment(row.created_at),
        "events": [] if own else events_of(row.message_id, effects=app),
    }


def _words(content: StoredContent | None, *, is_shared: bool) -> dict[str, Any]:
    """The variables of a message to a group are not of one recipient alone."""
    if content is None:
        return {"subject": None, "context": None}
    return {"subject": content.source.subject, "context": None if is_shared else msgspec.Raw(content.context.encode())}


def _bytes(app: Effects, key: str, source: MessageSource) -> tuple[bytes, list[dict[str, Any]]]:
    """The message with those of its files that are still what they were, and what is told of each."""
    files, contents = Files(app), {}
    kept: list[Attachment] = []
    for attachment in source.attachments:
        try:
            contents.update(files.read(msgspec.structs.replace(source, attachments=(attachment,)), key))
        except (AttachmentMissing, ContentChanged):
            continue
        kept.append(attachment)
    facts = [
        {
            "filename": attachment.filename, "content_type": attachment.content_type,
            "size_bytes": attachment.size_bytes, "sha256": attachment.sha256, "included": attachment in kept,
        }
        for attachment in source.attachments
    ]  # fmt: skip
    return build(msgspec.structs.replace(source, attachments=tuple(kept)), contents), facts


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
        digests = _digests_of(app, connection, address)
        keys = table.keys(app.store, connection, digests)
        events, suppressions = table.blank_address(app.store, connection, digests, gone=_gone(digests))
        suppression_table.clear_failures(app.store, connection, digests)
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
        data = attachments.replace_file(app, connection, key, attachment.sha256, change)
    except AttachmentMissing:
        return attachment
    return msgspec.structs.replace(attachment, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def _divided(people: Sequence[Address], sizes: Sequence[int]) -> list[tuple[Address, ...]]:
    first, second = sizes[0], sizes[0] + sizes[1]
    return [tuple(people[:first]), tuple(people[first:second]), tuple(people[second:])]
