"""effects that works for so many seconds and prints how long its claims took, second by second."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from benchmarks.processes import await_go
from benchmarks.systems import ours
from effects.store.claim.claim import Claimed
from effects.worker import Worker
from effects.worker.claiming import dispatcher


def work(seconds: str, database: str) -> None:
    """Print a list of [seconds since the start, milliseconds, jobs], one for each claim that took jobs."""
    worker = Worker(ours.app(database), queues={"default": 10})
    claims: list[tuple[float, float, int]] = []
    claim_valid: Callable[..., Claimed] = dispatcher.claim_valid
    await_go()
    started = time.perf_counter()

    def timed(*arguments: Any) -> Claimed:
        begun = time.perf_counter()
        claimed = claim_valid(*arguments)
        if claimed.jobs:
            claims.append((begun - started, (time.perf_counter() - begun) * 1000, len(claimed.jobs)))
        return claimed

    with patch.object(dispatcher, "claim_valid", timed):
        threading.Timer(float(seconds), worker.stop).start()
        worker.run()
    print(json.dumps(claims), flush=True)
