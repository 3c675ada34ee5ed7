"""What an attempt knows and no settlement carries: the bytes' hash, the recipients' results, whose address failed.

Kept in this process between `perform` and the write of its outcome. Addresses go no other way than this: what a
settlement carries is logged and shown.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from effects_email.bounces import Failure
from effects_email.tables.ledger import RecipientResult

KEPT_MAX = 10_000  # an attempt that lost its lease is never recorded, and leaves its entry


class _Entry(msgspec.Struct):
    hash: str
    results: Sequence[RecipientResult] = ()
    failures: Sequence[Failure] = ()
    transport: str = ""


class AttemptMemory:
    """By job id. May be used by many threads."""

    def __init__(self) -> None:
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        self._lock = threading.Lock()

    def sending(self, job_id: int, sha256: str) -> None:
        """These bytes are about to be sent."""
        with self._lock:
            self._entries[job_id] = _Entry(sha256)
            self._entries.move_to_end(job_id)
            while len(self._entries) > KEPT_MAX:
                self._entries.popitem(last=False)

    def answered(
        self, job_id: int, results: Sequence[RecipientResult], failures: Sequence[Failure], transport: str
    ) -> None:
        """What became of the recipients."""
        with self._lock:
            if (entry := self._entries.get(job_id)) is not None:
                entry.results, entry.failures, entry.transport = results, failures, transport

    def hash_of(self, job_id: int) -> str | None:
        with self._lock:
            entry = self._entries.get(job_id)
        return entry.hash if entry is not None else None

    def results_of(self, job_id: int) -> Sequence[RecipientResult]:
        with self._lock:
            entry = self._entries.get(job_id)
        return entry.results if entry is not None else ()

    def take_failures(self, job_id: int) -> tuple[str, Sequence[Failure]]:
        """The refusals that say something about an address, and the transport that heard them."""
        with self._lock:
            entry = self._entries.get(job_id)
        return (entry.transport, entry.failures) if entry is not None else ("", ())

    def forget(self, job_id: int) -> None:
        with self._lock:
            self._entries.pop(job_id, None)
