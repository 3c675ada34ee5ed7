"""What is kept of a message until some days after its end: its parts, and the context they were made from.

Both are personal. They are compressed and, where EFFECTS_KEYS has a key, sealed under it, bound to the message's row.
"""

from __future__ import annotations

import zlib
from typing import Any

import msgspec
from sqlalchemy import Row

from effects.app import Effects
from effects.sealing import SealedColumn
from effects_email.parts import Parts

_LEVEL = 1  # of the nine of zlib: half the time, nine tenths of the gain


class Content(msgspec.Struct, frozen=True):
    """A message as it was made. `context` is JSON text; `--render-again` needs it."""

    parts: Parts
    context: str

    def __repr__(self) -> str:
        return f"Content(message_id={self.parts.message_id!r})"


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Content)


def pack(app: Effects, key: str, content: Content) -> tuple[bytes | None, bytes | None]:
    """The values of the columns `content` and `sealed`; one of them is None."""
    packed = zlib.compress(_encoder.encode(content), _LEVEL)
    if not app.keys.ids:
        return packed, None
    return None, app.keys.seal(packed, **_context(key))


def unpack(app: Effects, key: str, clear: bytes | None, sealed: bytes | None) -> Content | None:
    """The content of a row; None where it is no longer kept.

    Raises:
        KeyUnavailable: EFFECTS_KEYS does not hold its key, or the value was altered or moved.
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
