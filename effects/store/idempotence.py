"""Writing what has an idempotency key.

The same key with the same content is a duplicate, with other content a conflict. This is decided here alone, for jobs
and for what packages write.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

import msgspec
from sqlalchemy import Connection

from effects.errors import IdempotencyConflict
from effects.keys.encryption import KeyRing

T = TypeVar("T")
R = TypeVar("R")
T_contra = TypeVar("T_contra", contravariant=True)

NO_DIGEST = ""  # of a holder that is another one whatever its content, such as another tenant's


class KeyHolder(msgspec.Struct, Generic[R], frozen=True, kw_only=True):
    """What was written with a key before.

    Args:
        receipt: for a request with the same content.
        digest: of its content. None: it cannot be compared, and counts as the same.
        key: what is taken, for an error: `email.send: the idempotency key 'k'`.
        owner: what has taken it, for an error: `job 5`.
        job_id: its job, if it has one.
        conflict: why it cannot give way to the request, for an error; None: that was not asked for, or it has.
    """

    receipt: R
    digest: str | None
    key: str
    owner: str
    job_id: int | None = None
    conflict: str | None = None


class IdempotentWriter(Protocol[T_contra, R]):
    """Writes requests of one kind. Each list that it returns has one item for each request, in their order."""

    def insert(self, requests: Sequence[T_contra]) -> Sequence[R | None]:
        """Write the requests whose keys are free, with the digests of their contents; None for the others."""
        ...

    def holders(self, requests: Sequence[T_contra]) -> Sequence[KeyHolder[R] | None]:
        """Find what has taken the keys of these requests; None where the key is free again."""
        ...

    def content(self, request: T_contra) -> str:
        """The text that the digest is computed of."""
        ...


def write_once(
    keys: KeyRing,
    connection: Connection,
    requests: Sequence[T],
    writer: IdempotentWriter[T, R],
    *,
    batch: int | None = None,
) -> list[R]:
    """Write each request whose key is free. A request with a known key gives the receipt of its holder.

    Args:
        keys: `Effects.keys`, which compute the digests.
        connection: from `Effects.writing`.
        batch: how many requests the writer gets at a time. Default: all.

    Returns:
        The receipts, one for each request.

    Raises:
        IdempotencyConflict: a key is taken by other content. Nothing of this call is written then: it is rolled back
            to a savepoint. (A single request needs none.)
    """
    if len(requests) <= 1:
        return _write(keys, requests, writer)
    size = batch or len(requests)
    receipts: list[R] = []
    with connection.begin_nested():
        for start in range(0, len(requests), size):
            receipts += _write(keys, requests[start : start + size], writer)
    return receipts


def _write(keys: KeyRing, requests: Sequence[T], writer: IdempotentWriter[T, R]) -> list[R]:
    receipts: dict[int, R | None] = dict(enumerate(writer.insert(requests)))
    while taken := [number for number, receipt in receipts.items() if receipt is None]:
        holders = writer.holders([requests[number] for number in taken])
        free = []
        for number, holder in zip(taken, holders, strict=True):
            if holder is None:  # its holder was deleted since the insert
                free.append(number)
            else:
                receipts[number] = _receipt_of(keys, writer.content(requests[number]), holder)
        if free:
            receipts.update(zip(free, writer.insert([requests[number] for number in free]), strict=True))
    return [receipt for receipt in receipts.values() if receipt is not None]


def _receipt_of(keys: KeyRing, content: str, holder: KeyHolder[R]) -> R:
    if holder.conflict is None and (holder.digest is None or holder.digest == keys.digest(content, like=holder.digest)):
        return holder.receipt
    differs = holder.conflict or "which has other content; use another one for other content"
    if holder.digest is not None and not keys.can_compare(holder.digest):
        differs = (
            "and whether that has the same content cannot be told without the key named digest that EFFECTS_KEYS had "
            "then: set it again, or use another idempotency key"
        )
    raise IdempotencyConflict(f"{holder.key} belongs to {holder.owner}, {differs}", job_id=holder.job_id)
