"""A rendered message: what the ledger keeps and what the bytes are built from."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, TypeAlias

import msgspec

Kind: TypeAlias = Literal["to", "cc", "bcc"]


class Address(msgspec.Struct, frozen=True):
    """One parsed address. `domain` is an A-label, lower case; `local` is as given."""

    local: str
    domain: str
    name: str = ""

    @property
    def spec(self) -> str:
        return f"{self.local}@{self.domain}"


class Attachment(msgspec.Struct, frozen=True, kw_only=True):
    """A file by reference. Its bytes are read when the message is built and must have this hash."""

    url: str
    filename: str
    content_type: str
    size_bytes: int
    sha256: str
    content_id: str | None = None  # an inline image


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """All that a message consists of, fixed at the call. The same Parts give the same bytes, always."""

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

    def recipients(self) -> list[tuple[Kind, Address]]:
        """Everybody it goes to: To, Cc, Bcc, in this order. Their places in this list number them."""
        kinds: tuple[tuple[Kind, tuple[Address, ...]], ...] = (("to", self.to), ("cc", self.cc), ("bcc", self.bcc))
        return [(kind, one) for kind, addresses in kinds for one in addresses]

    def __repr__(self) -> str:
        return f"Parts(message_id={self.message_id!r})"
