"""The listener comes back soon after a short outage, does not hammer a database that stays away, and misses nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Self

import pytest

from effects import Effects, enqueue
from effects.worker.machine.runtime import FileChanges, FileGone, Runtime
from effects.worker.upkeep.notifications import (
    SQLITE_LONG_STEP_SECONDS,
    SQLITE_STEP_SECONDS,
    SQLITE_STEP_SHARE,
    UNANNOUNCED_MAX,
    NotificationListener,
    _Looks,
)
from tests.support.waiting import wait_until
from tests.support.worker_parts import context_of


class _Ending:
    """An event that is set after so many waits, and keeps how long they were."""

    def __init__(self, waits_max: int) -> None:
        self.waits: list[float] = []
        self._waits_max = waits_max

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        return self.is_set()

    def is_set(self) -> bool:
        return len(self.waits) >= self._waits_max

    def clear(self) -> None:
        """It is set by waits alone."""


class _Recorder(Runtime):
    def __init__(self, jitter: float) -> None:
        self.ending = _Ending(7)
        self.random = lambda: jitter

    def event(self) -> Any:
        return self.ending


@pytest.mark.parametrize("jitter", [0.0, 1.0])
def test_waits_between_tries_double_up_to_five_seconds(jitter: float) -> None:
    runtime = _Recorder(jitter)
    nowhere = Effects("postgresql+psycopg://nobody@127.0.0.1:1/none")
    NotificationListener(context_of(nowhere, runtime), lambda queues: None).run()
    nowhere.dispose()
    expected = [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert runtime.ending.waits == pytest.approx([seconds * (1 + jitter / 2) for seconds in expected])


class _Checks(Runtime):
    """Ends the service when it has looked so often whether to end."""

    def __init__(self, checks: int) -> None:
        self._checks = checks

    def event(self) -> Any:
        return self

    def is_set(self) -> bool:
        self._checks -= 1
        return self._checks < 0

    def wait(self, seconds: float) -> bool:
        return self.is_set()

    def clear(self) -> None:
        """It is set by checks alone."""


@pytest.mark.slow
def test_a_new_listener_looks_once_for_earlier_commits(app: Effects) -> None:
    """Between two connections a NOTIFY is heard by no one."""
    woken: list[Collection[str] | None] = []
    for _ in range(2):  # at the start, and after a lost connection
        NotificationListener(context_of(app, _Checks(4)), woken.append).run()
    assert woken == [None, None]


# -- writes to a SQLite file -----------------------------------------------------------------------------------


def test_a_write_ends_the_wait(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("")
    changes = FileChanges([str(file)])
    assert not changes.wait(0)
    file.write_text("more")
    assert changes.wait(20)
    changes.interrupt()
    assert not changes.wait(20)
    file.unlink()
    with pytest.raises(FileGone):
        changes.wait(20)
    changes.close()


def test_a_file_that_is_not_there_is_not_watched(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        FileChanges([str(tmp_path / "none")])


class _Silent(FileChanges):
    """Of a file system that tells of nothing."""

    def wait(self, seconds: float) -> bool:
        super().wait(0.01)
        return False


def _refuse(paths: object) -> FileChanges:
    raise OSError("no inotify")


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("kind", [FileChanges, _Silent, _refuse], ids=["told", "silent", "no inotify"])
def test_each_commit_is_noticed(app: Effects, kind: Callable[..., FileChanges]) -> None:
    runtime = Runtime()
    runtime.file_changes = kind  # type: ignore[method-assign]
    woken: list[Collection[str] | None] = []
    listener = NotificationListener(context_of(app, runtime), woken.append)
    thread = threading.Thread(target=listener.run)
    thread.start()
    wait_until(lambda: len(woken) == 1)
    for _ in range(UNANNOUNCED_MAX + 2):
        before = len(woken)
        enqueue("scripted", {}, effects=app)
        wait_until(lambda before=before: len(woken) > before)
    listener.stop()
    thread.join(20)
    assert not thread.is_alive()


class _SlowDisk:
    """Stands for the runtime, the cursor and the system's news of writes, on a clock that only waits move."""

    def __init__(self, writes: Sequence[float], committed_at: float) -> None:
        self.now, self._writes, self._committed_at = 0.0, list(writes), committed_at

    def monotonic(self) -> float:
        return self.now

    def event(self) -> threading.Event:
        event = threading.Event()
        event.wait = self._pass  # type: ignore[method-assign,assignment]
        return event

    def _pass(self, seconds: float) -> bool:
        self.now += seconds
        return False

    def file_changes(self, paths: object) -> Any:
        return self

    def wait(self, seconds: float) -> bool:
        until = self.now + seconds
        if self._writes and self._writes[0] <= until:
            self.now = max(self.now, self._writes.pop(0))
            return True
        self.now = until
        return False

    def execute(self, statement: str) -> Self:
        self._statement = statement
        return self

    def fetchone(self) -> tuple[object]:
        return ("wal",) if "journal_mode" in self._statement else (self.now >= self._committed_at,)

    def fetchall(self) -> list[tuple[object, ...]]:
        return [(0, "main", "a.db")]


@pytest.mark.parametrize("sync_seconds", [0.001, 0.02, 0.1, 0.4])
@pytest.mark.parametrize("before_seconds", [None, 0.01, 0.05, 0.3, 0.45])
def test_a_commit_is_seen_soon_however_slow_the_disk_is(sync_seconds: float, before_seconds: float | None) -> None:
    """Whether or not another write came before, of which no commit is seen."""
    writes = [10.0] if before_seconds is None else [10.0 - before_seconds, 10.0]
    committed_at = 10.0 + sync_seconds
    disk: Any = _SlowDisk(writes, committed_at)
    looks = _Looks(disk, disk.event(), disk)
    assert looks.until_a_commit(), "the first look knows nothing before it"
    assert looks.until_a_commit()
    late_max = SQLITE_STEP_SECONDS + SQLITE_LONG_STEP_SECONDS + SQLITE_STEP_SHARE * sync_seconds
    assert 0 <= disk.now - committed_at <= late_max
