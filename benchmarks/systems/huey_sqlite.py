"""huey with its SQLite storage: the same durability (`fsync=True`), no results, one worker thread."""

from __future__ import annotations

from huey import SqliteHuey
from huey.consumer import Consumer

from benchmarks.drains import System, payload
from benchmarks.processes import await_go


def queue(file: str) -> SqliteHuey:
    """`results=False` and WAL are its quickest; `fsync=True` is synchronous=FULL, as ours."""
    return SqliteHuey("bench", filename=file, fsync=True, journal_mode="wal", results=False)


def system(workers: int) -> System:
    return System("huey_sqlite", (str(workers),), fill, "task", "true")


def noop(body: object) -> None:
    """The no-op."""


def fill(file: str, count: int) -> None:
    """One transaction of huey's own rows, because huey has no bulk enqueue: filling is not measured here."""
    huey = queue(file)
    task = huey.task(name="noop")(noop)
    rows = [(huey.name, huey.serialize_task(task.s(payload(number))), 0.0) for number in range(count)]
    with huey.storage.db(commit=True) as cursor:
        cursor.executemany("INSERT INTO task (queue, data, priority) VALUES (?, ?, ?)", rows)
    huey.storage.close()


def work(workers: str, file: str) -> None:
    huey = queue(file)
    huey.task(name="noop")(noop)
    consumer = Consumer(huey, workers=int(workers), worker_type="thread", periodic=False)
    await_go()
    consumer.run()
