"""graphile-worker, of Node: where `npm` has put it, else left out."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import psycopg
from psycopg.types.json import Json

from benchmarks.drains import System, payload

FOLDER = Path(".venv/node")  # of `make bench`
_SCRIPT = Path(__file__).with_name("graphile.mjs")
_ADD = """
SELECT count(*) FROM graphile_worker.add_jobs(ARRAY(
    SELECT ROW('noop', payload, NULL, NULL, NULL, NULL, NULL, NULL)::graphile_worker.job_spec
    FROM unnest(%s::json[]) AS payload))"""  # by `add_job`, one by one, a fill takes half a minute


def available() -> bool:
    return shutil.which("node") is not None and (FOLDER / "node_modules" / "graphile-worker").is_dir()


def system(concurrency: int, local_queue: int) -> System:
    """Jobs are taken `local_queue` at a time, and completed in batches: its quickest settings by its documents."""
    arguments = (str(concurrency), str(local_queue))
    return System("graphile", arguments, fill, "graphile_worker._private_jobs", "locked_at IS NULL")


def fill(database: str, count: int) -> None:
    subprocess.run([*_node(), "migrate", database], env=_environment(), check=True)
    with psycopg.connect(database) as connection:
        connection.execute(_ADD, [[Json(payload(number)) for number in range(count)]])


def work(concurrency: str, local_queue: str, database: str) -> None:
    os.execvpe("node", [*_node(), "work", database, concurrency, local_queue], _environment())


def _node() -> list[str]:
    return ["node", str(_SCRIPT)]


def _environment() -> dict[str, str]:
    return {**os.environ, "EFFECTS_BENCH_NODE": str(FOLDER.absolute())}
