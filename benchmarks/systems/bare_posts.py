"""The floor under deliveries: ready requests, posted by as many threads over the same transport. No queue, no record.

Bodies and headers are made before the clock runs; nothing is signed, decided or written.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from datetime import UTC, datetime

from benchmarks.processes import await_go
from benchmarks.systems.deliveries import events, url_of
from effects_webhooks import generate_secret, sign
from effects_webhooks.transport.exchange import DEADLINE_SECONDS
from effects_webhooks.transport.http import WebhookTransports
from effects_webhooks.transport.network import GuardedBackend


def work(threads: str, count: str, ports: str) -> None:
    """Prints the seconds that `count` events to every port took."""
    posts: queue.SimpleQueue[tuple[str, dict[str, str], bytes] | None] = queue.SimpleQueue()
    urls = [url_of(port) for port in json.loads(ports)]
    for number, event in enumerate(events(int(count))):
        body = event.body(datetime.now(UTC))
        headers = _headers(f"msg_{number:026}", body)
        for url in urls:
            posts.put((url, headers, body))
    for _ in range(int(threads)):
        posts.put(None)
    transports = WebhookTransports(GuardedBackend(allow_private=True))

    def post() -> None:
        while (request := posts.get()) is not None:
            url, headers, body = request
            exchange = transports.post(url, headers, body, seconds=DEADLINE_SECONDS)
            assert exchange.status == 204, exchange.failure

    workers = [threading.Thread(target=post) for _ in range(int(threads))]
    await_go()
    begun = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    print(time.perf_counter() - begun, flush=True)


def _headers(message_id: str, body: bytes) -> dict[str, str]:
    """As many and as long as those of a delivery."""
    now = int(time.time())
    return {
        "content-type": "application/json",
        "user-agent": "effects/0.0.0",
        "accept-encoding": "identity",
        "webhook-id": message_id,
        "webhook-timestamp": str(now),
        "webhook-signature": sign(generate_secret(), message_id, now, body),
    }
