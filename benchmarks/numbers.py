"""What numbers over time cost a worker: the same drain with them and without."""

from __future__ import annotations

from benchmarks.options import Options
from benchmarks.rounds import Report
from benchmarks.systems import ours
from benchmarks.with_without import compare

JOBS = 60_000


def run(options: Options) -> Report:
    count = options.size(JOBS)
    systems = {"with numbers": ours.system(), "without numbers": ours.system(without="numbers")}
    title = f"{count:,} no-op jobs, one worker process, with rollups and samples and without"
    return compare("numbers", title, systems, count, options, aim=False)
