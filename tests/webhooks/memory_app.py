"""Posts to the ports it is given and prints, after each, how far the process's memory has grown at its peak.

Args: the port of a peer that answers in order, then the ports of those that do not.
"""

from __future__ import annotations

import sys
from pathlib import Path

from effects.kit.guarded import GuardedNetwork
from effects_webhooks.classify import classify
from tests.support.blocking_posts import BlockingTransports

POSTS = 4
DEADLINE_SECONDS = 0.5
BODY = b'{"type":"t","data":{"n":1}}'


def peak_bytes() -> int:
    """The most resident memory so far."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def main(ports: list[int]) -> None:
    transports = BlockingTransports(GuardedNetwork(allow_private=True))

    def post(port: int) -> None:
        exchange = transports.post(f"http://127.0.0.1:{port}/", {}, BODY, seconds=DEADLINE_SECONDS)
        classify(exchange, host="127.0.0.1")

    for _ in range(POSTS):
        post(ports[0])
    before = peak_bytes()
    for port in ports[1:]:
        for _ in range(POSTS):
            post(port)
        print(peak_bytes() - before, flush=True)


if __name__ == "__main__":
    main([int(port) for port in sys.argv[1:]])
