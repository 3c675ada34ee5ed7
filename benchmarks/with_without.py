"""What a feature costs a worker: the same drain with it and without, in pairs whose ratio is told with its interval.

The two drains of a pair follow one another, and every other pair begins with the other one. CPU is that of the whole
worker process: it can tell a hundredth where other load moves the wall clock by a tenth.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from functools import partial

from benchmarks.drains import System, drain_postgresql, drain_sqlite
from benchmarks.options import Options
from benchmarks.rounds import Contender, Goal, Report, interleave
from benchmarks.servers import sqlite_file

PAIRS = 3  # a round
RATE, CPU = "jobs/s", "worker CPU µs a job"
SLOWER_MAX = 0.03
_Z = 1.96


def compare(name: str, title: str, systems: Mapping[str, System], count: int, options: Options, *, aim: bool) -> Report:
    """Args:
    systems: what it is called → how it works; first with the feature, then without.
    aim: whether missing the bound fails nothing.
    """
    with_name, without_name = systems
    drains: Mapping[str, Callable[..., dict[str, float]]] = {"PostgreSQL": _on_postgresql, "SQLite": _on_sqlite}
    report = Report(name, title, [RATE, CPU], [], decimals=1)
    for database, drain in drains.items():
        contenders = [
            Contender(f"{database}, {kind}", "defaults: 10 threads", partial(drain, options, system, count))
            for kind, system in systems.items()
        ]
        report.rows += interleave(contenders, PAIRS * options.rounds, RATE, options.say)
        for column, less_is_more in ((RATE, False), (CPU, True)):
            samples = [report.row(f"{database}, {kind}").samples[column] for kind in (with_name, without_name)]
            ratio, half = interval(*samples)
            text = f"{database}, {column}: {with_name} / {without_name}"
            bound = 1 + SLOWER_MAX if less_is_more else 1 - SLOWER_MAX
            report.goals.append(Goal(text, ratio, bound, at_least=not less_is_more, aim=aim))
            report.notes.append(f"{text}: {ratio:.4f}, 95 % from {ratio / half:.4f} to {ratio * half:.4f}")
    return report


def interval(measured: list[float], baseline: list[float]) -> tuple[float, float]:
    """The mean ratio of the pairs, and the factor by which its 95 % interval goes below and above it."""
    logs = [math.log(value / base) for value, base in zip(measured, baseline, strict=True)]
    if len(logs) < 2:
        return math.exp(logs[0]), math.inf
    error = statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(statistics.fmean(logs)), math.exp(_t(len(logs) - 1) * error)


def _t(freedom: int) -> float:
    """Student's quantile for 95 %, by the first terms of its expansion."""
    return _Z + (_Z**3 + _Z) / (4 * freedom) + (5 * _Z**5 + 16 * _Z**3 + 3 * _Z) / (96 * freedom**2)


def _on_postgresql(options: Options, system: System, count: int) -> dict[str, float]:
    cpu: list[float] = []
    with options.server.database() as url:
        rate = drain_postgresql(system, url, count, ended=lambda worker: cpu.append(float(worker.line())))
    return {RATE: rate, CPU: cpu[0] / count * 1e6}


def _on_sqlite(_options: Options, system: System, count: int) -> dict[str, float]:
    cpu: list[float] = []
    with sqlite_file() as file:
        rate = drain_sqlite(system, file, count, ended=lambda worker: cpu.append(float(worker.line())))
    return {RATE: rate, CPU: cpu[0] / count * 1e6}
