"""The floor under deliveries: ready requests, as many posted at a time by aiohttp. No queue, no guard, no record.

Bodies and headers are made before the clock runs; nothing is signed, decided or written.
"""

from __future__ import annotations

import asyncio
import json
import time
from datetime import UTC, datetime

import aiohttp

from benchmarks.processes import await_go
from benchmarks.systems.deliveries import events, url_of
from effects_webhooks import generate_secret, sign
from effects_webhooks.transport.exchange import DEADLINE_SECONDS


def work(at_a_time: str, count: str, ports: str) -> None:
    """Prints the seconds that `count` events to every port took."""
    urls = [url_of(port) for port in json.loads(ports)]
    posts: list[tuple[str, dict[str, str], bytes]] = []
    for number, event in enumerate(events(int(count))):
        body = event.body(datetime.now(UTC))
        headers = _headers(f"msg_{number:026}", body)
        posts += [(url, headers, body) for url in urls]
    await_go()
    begun = time.perf_counter()
    asyncio.run(_post_all(posts, int(at_a_time)))
    print(time.perf_counter() - begun, flush=True)


async def _post_all(posts: list[tuple[str, dict[str, str], bytes]], at_a_time: int) -> None:
    waiting = iter(posts)

    async def post(session: aiohttp.ClientSession) -> None:
        for url, headers, body in waiting:
            async with session.post(url, headers=headers, data=body, allow_redirects=False) as answer:
                await answer.read()
                assert answer.status == 204

    timeout = aiohttp.ClientTimeout(DEADLINE_SECONDS)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        await asyncio.gather(*(post(session) for _ in range(at_a_time)))


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
