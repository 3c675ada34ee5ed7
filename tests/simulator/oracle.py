"""What must hold of every world that has come to rest: its tables against the receiver's log."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from itertools import combinations

from effects.operate.tables.audit import audit
from effects.store.schema.job_tables import STATUS_LIVE
from tests.simulator.world import Arrival, World

_ATTEMPTS = "SELECT job_id, lease_token, verdict FROM effects_job_attempts"
_ENDED = "SELECT id, status, attempts, unknown_count, on_unknown FROM effects_job_history"


def complaints(world: World) -> list[str]:
    """What does not hold; empty for a world in which everything was right."""
    host = world.hosts[0]
    host.enter(world.database, world.control)
    with closing(sqlite3.connect(world.file)) as connection:
        verdicts = {(job, token): verdict for job, token, verdict in connection.execute(_ATTEMPTS)}
        statuses = {job: status for job, status, *_ in connection.execute(_ENDED)}
        live = connection.execute(f"SELECT id, status FROM effects_jobs WHERE {STATUS_LIVE}").fetchall()
    return [
        *(f"job {job} is {status} though everything is at rest" for job, status in live),
        *_of_attempts(world, verdicts),
        *_of_jobs(world, statuses, verdicts),
        *_of_groups(world, verdicts),
        *(f"effects audit: {finding}" for finding in audit(host.app.store, host.app.ledgers)),
    ]


def _of_attempts(world: World, verdicts: dict[tuple[int, int], str]) -> Iterator[str]:
    arrived = {(arrival.job_id, arrival.token) for arrival in world.arrivals}
    for key, verdict in verdicts.items():
        if verdict == "done" and key not in arrived:
            yield f"an attempt of job {key[0]} is done, and nothing arrived"
        if verdict == "not_done" and key in arrived:
            yield f"an attempt of job {key[0]} is recorded as not done, and it arrived"
    for key in arrived - verdicts.keys():
        yield f"an attempt of job {key[0]} arrived, and none is on record"


def _of_jobs(world: World, statuses: dict[int, str], verdicts: dict[tuple[int, int], str]) -> Iterator[str]:
    policies = {job.name: job.policy for job in world.plan.jobs}
    arrivals = Counter(arrival.name for arrival in world.arrivals)
    unknown = Counter(job for (job, _), verdict in verdicts.items() if verdict == "unknown")
    for name, job in world.ids.items():
        if statuses.get(job) == "succeeded" and not arrivals[name]:
            yield f"{name} is done, and nothing arrived"
        if arrivals[name] - 1 > unknown[job]:
            yield f"{name} arrived {arrivals[name]} times with {unknown[job]} unknown attempts on record"
        if policies[name] == "hold" and arrivals[name] > 1:
            yield f"{name} arrived {arrivals[name]} times, though what is unknown is to be held"


def _of_groups(world: World, verdicts: dict[tuple[int, int], str]) -> Iterator[str]:
    """Two jobs of a group are never under way together, but where a worker that was given up goes on."""
    groups = {job.name: job.group for job in world.plan.jobs}
    in_order: dict[str, list[Arrival]] = {}
    for arrival in world.arrivals:
        group = groups[arrival.name]
        if group is not None and verdicts.get((arrival.job_id, arrival.token)) == "done":
            in_order.setdefault(group, []).append(arrival)
    for group, arrivals in in_order.items():
        for first, second in combinations(arrivals, 2):
            if first.at < second.until and second.at < first.until:
                yield f"{first.name} and {second.name} of {group} were under way together"
