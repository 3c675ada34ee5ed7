"""What an attempt leaves for the ledger of `email.send`, in `Attempt.private`.

It holds addresses, which go no other way than this: what an outcome carries is logged and shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec


class RecipientResult(msgspec.Struct, frozen=True):
    """What became of one recipient of a group message in one attempt."""

    key: str
    number: int
    outcome: str
    code: str


class AddressFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A refusal that concerns the address, from a verdict with `suppress`."""

    address: str
    kind: Literal["hard", "soft"]
    code: str  # such as smtp_550_5.1.1; stored, so nothing personal

    def __repr__(self) -> str:
        return f"AddressFailure(kind={self.kind!r}, code={self.code!r})"


class SendRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt: what it was about to send, and what became of that.

    `sha256`: of the message's bytes. `outcome`: as in `effects_sent_emails`. `took`: the transport took the message, or
    took it for some of its recipients. `held_in`: the run of refusals in which the message is held back.
    """

    sha256: str | None
    transport: str
    outcome: str | None = None
    took: bool = False
    reply_code: int | None = None
    reply: str | None = None
    provider_id: str | None = None
    held_in: str | None = None
    results: Sequence[RecipientResult] = ()
    failures: Sequence[AddressFailure] = ()
