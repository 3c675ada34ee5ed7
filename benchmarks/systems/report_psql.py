"""The same table by PostgreSQL's own client, into a file; packed by gzip where that is asked for."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from benchmarks.processes import await_go
from benchmarks.systems.cpu import CpuClock


def work(how: str, database: str, folder: str) -> None:
    await_go()
    clock, began = CpuClock(database, [os.getpid()]), time.monotonic()
    with (Path(folder) / "orders.csv").open("wb") as file:
        packs = how == "gzip"
        target = subprocess.PIPE if packs else file
        command = ["psql", database, "-qc", r"\copy bench_orders TO STDOUT (FORMAT csv, HEADER)"]
        with subprocess.Popen(command, stdout=target) as psql:
            if packs:
                subprocess.run(["gzip", "-6"], stdin=psql.stdout, stdout=file, check=True)
        assert psql.returncode == 0
    print(time.monotonic() - began, clock.seconds(), flush=True)
