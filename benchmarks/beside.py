"""How long the others wait: samples taken beside a trouble, compared with those taken without it, on both databases."""

from __future__ import annotations

import random
import statistics
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TypeAlias

from benchmarks import servers
from benchmarks.options import Options
from benchmarks.rounds import Contender, Goal, Report, interleave

SAMPLES, SAMPLES_MIN, WARM_UP = 200, 40, 10
GAP_SECONDS, WARM_UP_SECONDS = (0.01, 0.1), 0.01
P50, P95 = "p50 ms", "p95 ms"
TIMES, MORE_MS = 2.0, 50.0
Sample: TypeAlias = Callable[[int], float]


def compare(
    name: str,
    title: str,
    settings: Mapping[str, str],
    options: Options,
    measure: Callable[[str, str, int], dict[str, float]],
) -> Report:
    """A report whose goals bound the p95 beside each trouble.

    Args:
        title: where `{samples}` stands for their number.
        settings: kind → what it is; the first is the one without trouble.
        measure: given a database, a kind and a number of samples.
    """
    samples = max(SAMPLES_MIN, options.size(SAMPLES))
    databases: dict[str, Callable[[], AbstractContextManager[str]]] = {
        "PostgreSQL": options.server.database,
        "SQLite": _file_database,
    }

    def measured(database: Callable[[], AbstractContextManager[str]], kind: str) -> dict[str, float]:
        with database() as opened:
            return measure(opened, kind, samples)

    contenders = [
        Contender(f"{system} {kind}", setting, partial(measured, database, kind))
        for system, database in databases.items()
        for kind, setting in settings.items()
    ]
    rows = interleave(contenders, options.rounds, P95, options.say)
    report = Report(name, title.format(samples=samples), [P95, P50], rows, decimals=2)
    without, *troubles = settings
    for system in databases:
        alone = report.row(f"{system} {without}").median(P95)
        bound = round(max(TIMES * alone, alone + MORE_MS), 2)
        for kind in troubles:
            value = report.row(f"{system} {kind}").median(P95)
            report.goals.append(Goal(f"{system} {kind}, p95 ms", value, bound, at_least=False))
    report.notes = [f"The bound is the greater of {TIMES:g} times the wait without trouble and {MORE_MS:g} ms more."]
    return report


@contextmanager
def _file_database() -> Iterator[str]:
    with servers.sqlite_file() as file:
        yield str(file)


def waits(sample: Sample, count: int, *, begin: Callable[[], object] = lambda: None) -> dict[str, float]:
    """Milliseconds of so many samples, at random gaps, after a few that do not count. `begin` is called between."""
    for number in range(WARM_UP):
        threading.Event().wait(WARM_UP_SECONDS)
        sample(number)
    begin()
    gaps, milliseconds = random.Random(count), []
    for number in range(count):
        threading.Event().wait(gaps.uniform(*GAP_SECONDS))
        milliseconds.append(sample(number))
    return {P50: statistics.median(milliseconds), P95: statistics.quantiles(milliseconds, n=20)[18]}
