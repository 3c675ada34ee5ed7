"""Events from a file of JSON lines: the good ones are sent, each bad one is named by its line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any

import msgspec

from effects import Effects, EnqueueError, StoreUnavailable
from effects_webhooks.api import deliver_webhook, deliver_webhooks
from effects_webhooks.request import WebhookEvent
from effects_webhooks.writing import BATCH, WebhookReceipt


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    type: str
    data: dict[str, Any]
    key: str | None = None
    id: str | None = None
    occurred_at: datetime | None = None
    tenant: str | None = None
    ordering_key: str | None = None


@dataclass
class BatchResult:
    """What became of a file. `errors` has the number of each bad line, from 1, and what is wrong with it."""

    events: int = 0
    existing: int = 0
    deliveries: int = 0
    errors: list[tuple[int, str]] = field(default_factory=list)

    def add(self, receipt: WebhookReceipt) -> None:
        self.events += not receipt.existing
        self.existing += receipt.existing
        self.deliveries += 0 if receipt.existing else len(receipt.deliveries)


def send_lines(
    lines: Iterable[bytes],
    app: Effects,
    *,
    failed: Callable[[int, str], None] = lambda number, reason: None,
    passed: Callable[[int], None] = lambda size: None,
) -> BatchResult:
    """Send the events of `lines`, 500 in a transaction. Blank lines are skipped.

    Args:
        failed: called with the number of each bad line and the reason, as soon as it is known.
        passed: called with the bytes of the lines that are dealt with, for a progress bar.

    A crash leaves the batches that were committed. Run it again: an event with a key or an id is not sent twice.

    Raises:
        StoreUnavailable: the database is unavailable; the message names the first line whose result is not known.
    """
    result = BatchResult()

    def refuse(number: int, reason: str) -> None:
        result.errors.append((number, reason))
        failed(number, reason)

    numbered = enumerate(lines, 1)
    while batch := list(islice(numbered, BATCH)):
        good = list(_parsed(batch, refuse))
        try:
            for receipt in _sent(good, app, refuse):
                result.add(receipt)
        except StoreUnavailable as error:
            raise StoreUnavailable(f"{error}; what came before line {batch[0][0]} is sent") from error
        passed(sum(len(line) for _, line in batch))
    return result


def _parsed(
    batch: Sequence[tuple[int, bytes]], refuse: Callable[[int, str], None]
) -> Iterator[tuple[int, WebhookEvent]]:
    for number, line in batch:
        if line.strip():
            try:
                yield number, parse_line(line)
            except EnqueueError as error:
                refuse(number, str(error))


def parse_line(line: bytes) -> WebhookEvent:
    """The event of one line: an object with `type` and `data`, and perhaps `key`, `id`, `occurred_at`, `tenant`,
    `ordering_key`.

    Raises:
        EnqueueError: the line is invalid; the message tells why.
    """
    try:
        fields = msgspec.json.decode(line, type=_Line)
    except msgspec.ValidationError as error:
        raise EnqueueError(f"no event: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise EnqueueError(f"no JSON: {error}") from None
    except RecursionError:
        raise EnqueueError("no event: nested too deeply") from None
    return WebhookEvent(
        fields.type, fields.data, key=fields.key, id=fields.id, occurred_at=fields.occurred_at, tenant=fields.tenant,
        ordering_key=fields.ordering_key,
    )  # fmt: skip


def _sent(
    good: Sequence[tuple[int, WebhookEvent]], app: Effects, refuse: Callable[[int, str], None]
) -> list[WebhookReceipt]:
    """One transaction for all; where one event spoils it, one for each."""
    try:
        return deliver_webhooks([event for _, event in good], effects=app)
    except EnqueueError:
        pass
    receipts = []
    for number, event in good:
        try:
            receipts.append(deliver_webhook(event, effects=app))
        except EnqueueError as error:
            refuse(number, str(error))
    return receipts
