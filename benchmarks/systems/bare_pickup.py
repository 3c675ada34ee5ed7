"""What a pick-up cannot do without: LISTEN, and one UPDATE that commits; runs until it is ended."""

from __future__ import annotations

import os
import time

import psycopg

from benchmarks.processes import await_go

CHANNEL = "bench_pickup"
TABLE = "CREATE TABLE bench_pickup (id bigserial PRIMARY KEY, payload text NOT NULL, started boolean DEFAULT false)"
_CLAIM = """
UPDATE bench_pickup SET started = true
WHERE id = (SELECT id FROM bench_pickup WHERE NOT started ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING id"""


def work(database: str) -> None:
    with (
        psycopg.connect(database, autocommit=True) as listening,
        psycopg.connect(database, autocommit=True) as claiming,
    ):
        claiming.prepare_threshold = 0
        listening.execute(f"LISTEN {CHANNEL}")
        await_go()
        for _ in listening.notifies():
            if claiming.execute(_CLAIM).fetchone():
                os.write(1, b"%d\n" % time.monotonic_ns())
