"""PgQueuer: its own queries fill, its own QueueManager drains, on uvloop as its own command line does."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack

import asyncpg
import psycopg
import uvloop
from pgqueuer.core.qm import QueueManager
from pgqueuer.models import Job
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode

from benchmarks.drains import System, payload
from benchmarks.processes import await_go

_FILL_BATCH = 1000


def system(driver: str, batch: int) -> System:
    """Args: driver `psycopg` (one connection; it has no pool of its own) or `asyncpg` (a pool)."""
    return System("pgqueuer", (driver, str(batch)), fill, "pgqueuer", "status = 'queued'")


def fill(database: str, count: int) -> None:
    asyncio.run(_fill(database, count))


async def _fill(database: str, count: int) -> None:
    connection = await asyncpg.connect(database)
    try:
        queries = Queries.from_asyncpg_connection(connection)
        await queries.install()
        for start in range(0, count, _FILL_BATCH):
            numbers = range(start, min(start + _FILL_BATCH, count))
            bodies: list[bytes | None] = [json.dumps(payload(number)).encode() for number in numbers]
            await queries.enqueue(["noop"] * len(bodies), bodies, [0] * len(bodies))
    finally:
        await connection.close()


async def _queries(stack: AsyncExitStack, driver: str, database: str) -> Queries:
    if driver == "psycopg":
        connection = await psycopg.AsyncConnection.connect(database, autocommit=True)
        return Queries.from_psycopg_connection(await stack.enter_async_context(connection))
    return Queries.from_asyncpg_pool(await stack.enter_async_context(asyncpg.create_pool(database)))


def work(driver: str, batch: str, database: str) -> None:
    uvloop.run(_work(driver, int(batch), database))


async def _work(driver: str, batch: int, database: str) -> None:
    async with AsyncExitStack() as stack:
        manager = QueueManager(await _queries(stack, driver, database))

        @manager.entrypoint("noop")
        async def noop(job: Job) -> None:
            """The no-op."""

        await_go()
        await manager.run(batch_size=batch, mode=QueueExecutionMode.drain)
