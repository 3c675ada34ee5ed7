"""A person's data as a ZIP file: `index.json` with all that is kept of an address, and each message as it was sent.

Of a message to a group there is what this recipient got, and nothing of the others' results; Bcc is in no message.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, BinaryIO

import msgspec
from sqlalchemy import Row

from effects import Effects
from effects.extend import AuditAction, app_of, arguments, moment, moment_or_none, note
from effects_email.errors import AttachmentMissing, ContentChanged, EmailInvalid
from effects_email.events import events_of
from effects_email.message.address import Recipient, recipient
from effects_email.message.attachments import Files
from effects_email.message.mime import build
from effects_email.message.source import Attachment, MessageSource, StoredContent, open_content
from effects_email.personal.whose import digests_of
from effects_email.suppressions.suppression import find_suppressions, suppression_log
from effects_email.tables import personal as table
from effects_email.tables import sent

INDEX = "index.json"
_EXPORT = AuditAction("address", "export")
_LOG_LINES_MAX = 10_000
_DAY_0 = datetime(1970, 1, 1, tzinfo=UTC)
_json = msgspec.json.Encoder()


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
        digests = digests_of(app, connection, spec)
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
