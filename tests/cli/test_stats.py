"""`effects stats`: a table for each job type and queue, drawings with gaps, JSON for scripts."""

from __future__ import annotations

import json

import pytest

from effects import Effects, enqueue
from effects.cli.stats import drawing, shown_seconds
from effects.worker import Worker
from tests.cli.conftest import Run


@pytest.mark.parametrize(
    ("points", "drawn"),
    [
        ([], ""),
        ([None, None], "  "),
        ([0, None, 0], "· ·"),
        ([0, 1, 8, None, 4], "·▂█ ▅"),
        ([1], "█"),
        ([1, 1000], "▁█"),
    ],
)
def test_a_drawing_has_a_gap_where_no_worker_was(points: list[float | None], drawn: str) -> None:
    assert drawing(points) == drawn


@pytest.mark.parametrize(
    ("seconds", "shown"), [(None, None), (0.0025, "2 ms"), (0.5, "500 ms"), (1.25, "1.2 s"), (125.0, "2 min 5 s")]
)
def test_durations_are_printed_short(seconds: float | None, shown: str | None) -> None:
    assert shown_seconds(seconds) == shown


def test_a_database_without_numbers(run: Run) -> None:
    out = run("stats").out
    assert "no attempts" in out
    assert "no live jobs" in out


def test_what_a_drain_did_is_shown(app: Effects, run: Run) -> None:
    for moves in (["done"], ["done"], ["refuse"]):
        enqueue("scripted", {"moves": moves}, effects=app)
    Worker(app).drain(60)
    [header, line] = [line.split("  ") for line in run("stats", "--type", "scripted").out.splitlines()[3:5]]
    columns = [column.strip() for column in header if column.strip()]
    assert columns[:5] == ["type", "queue", "done", "retried", "refused"]
    assert [cell.strip() for cell in line if cell.strip()][:5] == ["scripted", "default", "2", "0", "1"]
    document = json.loads(run("stats", "--json", "--newer", "2h", "--queue", "default").out)
    [series] = [series for series in document["types"] if series["job_type"] == "scripted"]
    assert (series["attempts"], series["outcomes"]["done"], series["dead"]) == (3, 2, 1)
    assert series["run"]["p95"] > 0
    assert None in series["points"]
    assert sum(point or 0 for point in series["points"]) == 3
