"""A rendered message: what its bytes are built from, and how it is kept until some days after its end.

What is kept is personal. It is compressed and, where EFFECTS_KEYS has a key, sealed under it, bound to the message's
row.

Tags and metadata are that under which a provider counts a message and reports its events. They have one form that every
provider takes, because a message may go by another one than it was written for. By SMTP and into a maildir they are not
sent: there is no place for them.

| provider | tags | metadata |
|---|---|---|
| Resend, Amazon SES | tags `tag`, `tag_2`, `tag_3` with these values | tags of these names |
| Postmark | the first is the tag, others are metadata `tag_2`, `tag_3` | metadata |
| SendGrid | categories | custom arguments |
| Mailgun | tags | variables |
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypeAlias

import msgspec
from sqlalchemy import Row

from effects import Effects
from effects.extend.arguments import to_plain
from effects.extend.secrets import SealedColumn
from effects.extend.text import described
from effects_email.errors import EmailInvalid

Kind: TypeAlias = Literal["to", "cc", "bcc"]
_LEVEL = 1  # of the nine of zlib: half the time, nine tenths of the gain
_encoder = msgspec.msgpack.Encoder(enc_hook=to_plain)
TAGS_MAX = 3
PAIRS_MAX = 5
_TAG = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NAME = re.compile(r"(?!effects|tag)[a-z][a-z0-9_]{0,18}")
_VALUE = re.compile(r"[A-Za-z0-9_-]{1,80}")


class Address(msgspec.Struct, frozen=True):
    """One parsed address. `domain` is an A-label, lower case; `local` is as given."""

    local: str
    domain: str
    name: str = ""

    @property
    def spec(self) -> str:
        return f"{self.local}@{self.domain}"


FORGOTTEN = Address("forgotten", "invalid")  # in a message to a group, in the place of an address that was forgotten


class Attachment(msgspec.Struct, frozen=True, kw_only=True):
    """A file by reference. Its bytes are read when the message is built and must have this hash."""

    url: str
    filename: str
    content_type: str
    size_bytes: int
    sha256: str
    content_id: str | None = None  # an inline image


class MessageSource(msgspec.Struct, frozen=True, kw_only=True):
    """All that a message consists of, fixed at the call. The same source always gives the same bytes."""

    message_id: str  # without the angle brackets
    date: datetime
    sender: Address
    to: tuple[Address, ...]
    cc: tuple[Address, ...] = ()
    bcc: tuple[Address, ...] = ()  # envelope only, never a header
    reply_to: tuple[Address, ...] = ()
    subject: str
    text: str
    html: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    attachments: tuple[Attachment, ...] = ()
    return_path: Address | None = None  # the envelope's sender, where the caller gave one
    tags: tuple[str, ...] = ()  # these and the pairs: see the table above
    metadata: tuple[tuple[str, str], ...] = ()

    def recipients(self) -> list[tuple[Kind, Address]]:
        """Everybody it goes to: To, Cc, Bcc, in this order. Their places in this list number them."""
        kinds: tuple[tuple[Kind, tuple[Address, ...]], ...] = (("to", self.to), ("cc", self.cc), ("bcc", self.bcc))
        return [(kind, address) for kind, addresses in kinds for address in addresses]

    @property
    def first(self) -> Address:
        """Of all recipients."""
        return self.recipients()[0][1]

    def __repr__(self) -> str:
        return f"MessageSource(message_id={self.message_id!r})"


class StoredContent(msgspec.Struct, frozen=True):
    """A message as it was made. `context` is JSON text; `--render-again` needs it."""

    source: MessageSource
    context: str

    def __repr__(self) -> str:
        return f"StoredContent(message_id={self.source.message_id!r})"


_decoder = msgspec.msgpack.Decoder(StoredContent)


def seal_content(app: Effects, key: str, content: StoredContent) -> tuple[bytes | None, bytes | None]:
    """The values of the columns `content` and `sealed`; one of them is None."""
    packed = zlib.compress(_encoder.encode(content), _LEVEL)
    if not app.keys.ids:
        return packed, None
    return None, app.keys.seal(packed, **_context(key))


def open_content(app: Effects, key: str, clear: bytes | None, sealed: bytes | None) -> StoredContent | None:
    """The content of a row; None where it is no longer kept.

    Raises:
        KeyUnavailable: EFFECTS_KEYS does not hold its key.
        SealInvalid: the value was altered or moved.
    """
    if sealed is not None:
        clear = app.keys.open(bytes(sealed), **_context(key))
    return _decoder.decode(zlib.decompress(clear)) if clear is not None else None


def sealed_columns() -> list[SealedColumn]:
    """What `effects keys` counts and rotates."""
    return [
        SealedColumn(
            table="sent_emails", column="sealed", id_column="key", columns=(), context=_context_of
        )
    ]  # fmt: skip


def _context_of(row: Row[Any]) -> dict[str, str]:
    return _context(row.id)


def _context(key: str) -> dict[str, str]:
    return {"table": "sent_emails", "row": key, "field": "content"}


def tags_of(tags: Sequence[str]) -> tuple[str, ...]:
    """The tags, checked.

    Raises:
        EmailInvalid: names the tag by its number.
    """
    if isinstance(tags, str) or not isinstance(tags, Sequence):
        raise EmailInvalid(f"tags is {described(tags)}; give a list of texts")
    if len(tags) > TAGS_MAX:
        raise EmailInvalid(f"tags has {len(tags)}; a message has at most {TAGS_MAX}")
    for number, tag in enumerate(tags, 1):
        if not isinstance(tag, str) or not _TAG.fullmatch(tag):
            raise EmailInvalid(
                f"tag {number} is no text of 1 to 64 letters, digits, - and _: what every provider takes"
            )
    return tuple(dict.fromkeys(tags))


def metadata_of(metadata: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    """The pairs in the order of their names, checked.

    Raises:
        EmailInvalid: names the pair.
    """
    if metadata is None:
        return ()
    if not isinstance(metadata, Mapping):
        raise EmailInvalid(f"metadata is {described(metadata)}; give a dict of texts")
    if len(metadata) > PAIRS_MAX:
        raise EmailInvalid(f"metadata has {len(metadata)} pairs; a message has at most {PAIRS_MAX}")
    for number, (name, value) in enumerate(metadata.items(), 1):
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise EmailInvalid(
                f"metadata, pair {number}: the name is 1 to 19 small letters, digits and _, begins with a letter, and "
                "not with effects or tag"
            )
        if not isinstance(value, str) or not _VALUE.fullmatch(value):
            raise EmailInvalid(
                f"metadata, {name}: the value is no text of 1 to 80 letters, digits, - and _: what every provider takes"
            )
    return tuple(sorted(metadata.items()))


def labels(source: MessageSource) -> dict[str, str]:
    """All of them as pairs, for a provider that knows nothing else."""
    tags = {"tag" if number == 1 else f"tag_{number}": tag for number, tag in enumerate(source.tags, 1)}
    return {**tags, **dict(source.metadata)}
