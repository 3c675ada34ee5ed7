"""An app whose job uses up what the environment's LACK names, and may then spoil its worker as its payload says."""

from __future__ import annotations

import ctypes
import os
import resource
import threading
from pathlib import Path
from typing import Any

from effects import Attempt, Done, Effects, JobType

LACK, DONE = os.environ.get("LACK", ""), os.environ.get("LACK_DONE", "")
ADDRESSES = 1 << 28  # bytes that are left to a process that can start no thread
SPOILED = "effects-heartbeat"  # comes round many times a second


def use_up(resource_name: str) -> None:
    if resource_name == "threads":
        threading.stack_size(4 * ADDRESSES)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + ADDRESSES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    elif resource_name == "descriptors":
        try:
            while True:
                os.open(os.devnull, os.O_RDONLY)
        except OSError:
            pass
    elif resource_name == "standard error":
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        try:
            while True:
                os.write(writer, bytes(65536))
        except BlockingIOError:
            os.set_blocking(writer, True)
        os.dup2(writer, 2)
        os.set_inheritable(reader, False)


def end_thread(name: str) -> None:
    """As by an error that nothing expects."""
    [thread] = [thread for thread in threading.enumerate() if thread.name == name]
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(MemoryError))


def stand_still() -> None:
    """Keep the interpreter, as some libraries in C do: no other thread runs."""
    ctypes.PyDLL(None).sleep(1000)


class Lacking(JobType[dict[str, Any]]):
    name = "lack"
    payload = dict
    time_limit_seconds = 1.0
    on_unknown = "repeat"

    def perform(self, payload: dict[str, Any], attempt: Attempt) -> Done:
        ready = Path(f"{DONE}.{attempt.number}")
        ready.touch()
        use_up(LACK)
        ready.rename(DONE)  # which needs no descriptor
        if payload.get("then") == "part":
            end_thread(SPOILED)
        elif payload.get("then") == "still":
            stand_still()
        elif payload.get("then") == "hang":
            threading.Event().wait(1000)
        return Done()


class AsyncLacking(Lacking):
    name = "lack.async"

    async def perform(self, payload: dict[str, Any], attempt: Attempt) -> Done:  # type: ignore[override]
        return super().perform(payload, attempt)


app = Effects(job_types=[Lacking(), AsyncLacking()])
