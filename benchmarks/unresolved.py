"""What it costs a settlement to keep the set of unresolved jobs: a drain of jobs that all die, with it and without.

Of a job that succeeds it costs nothing: no statement is sent.
"""

from __future__ import annotations

from benchmarks.options import Options
from benchmarks.rounds import Report
from benchmarks.systems import ours
from benchmarks.with_without import compare

JOBS = 30_000


def run(options: Options) -> Report:
    count = options.size(JOBS)
    systems = {
        "with the set": ours.system(refused=True),
        "without the set": ours.system(refused=True, without="unresolved"),
    }
    title = f"{count:,} jobs that are all refused, one worker process, with the set of unresolved jobs and without"
    return compare("unresolved", title, systems, count, options, aim=True)
