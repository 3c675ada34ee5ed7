"""An app whose handlers start a thread that hangs, of an executor or of their own, and are done."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

from effects import Effects

app = Effects()
pool = ThreadPoolExecutor(2)


def hang_on() -> None:
    threading.Event().wait()


@app.job("left.executor")
def in_executor() -> None:
    pool.submit(hang_on)


@app.job("left.async", queue="async")
async def in_executor_async() -> None:
    asyncio.get_running_loop().run_in_executor(pool, hang_on)


@app.job("left.own")
def of_its_own() -> None:
    threading.Thread(target=hang_on, daemon=False).start()
