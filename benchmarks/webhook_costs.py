"""What a delivery costs: CPU of the worker by part, and SQL statements, counted by the server."""

from __future__ import annotations

import json

import psycopg

from benchmarks.options import Options
from benchmarks.processes import child
from benchmarks.rounds import Goal, Report, Row
from benchmarks.servers import PostgresServer
from benchmarks.statements import counted, logging_server
from benchmarks.systems import deliveries
from benchmarks.systems.timed_deliveries import PARTS, REST
from benchmarks.webhooks import EVENTS, EVENTS_MIN, PARTNERS, listening

CPU, SHARE, WORK, ALL = "CPU µs a delivery", "share %", "statements a delivery", "with BEGIN and COMMIT"
STATEMENTS_MAX = 1.0


def run(options: Options) -> Report:
    count = max(EVENTS_MIN, options.size(EVENTS))
    rows = {name: Row(name, "") for name in (*PARTS, REST)}
    for number in range(options.rounds):
        options.say(f"round {number + 1} of {options.rounds}: CPU")
        for part, seconds in _cpu_seconds(options.server, count).items():
            rows[part].add(seconds / (count * PARTNERS) * 1e6, CPU)
    whole = sum(row.median(CPU) for row in rows.values())
    for row in rows.values():
        row.add(row.median(CPU) / whole * 100, SHARE)
    options.say("statements")
    statements = _statements(options, count)
    title = f"{count} GitHub events to {PARTNERS} partners on loopback, one worker process, PostgreSQL"
    report = Report("webhook_costs", title, [CPU, SHARE, WORK, ALL], [*rows.values(), statements], decimals=3)
    report.goals = [Goal(WORK, statements.median(WORK), STATEMENTS_MAX, at_least=False)]
    report.notes = [
        f"CPU of the worker process alone, {whole:.0f} µs a delivery in all; each part without the parts inside it.",
        "The statements are all of a worker's, from its first connection to its last.",
    ]
    return report


def _cpu_seconds(server: PostgresServer, count: int) -> dict[str, float]:
    keys = deliveries.new_keys()
    with server.database() as database, listening(PARTNERS) as ports:
        deliveries.fill(database, keys, ports, count)
        _tidy(database)
        with child("timed_deliveries", keys, database) as worker:
            worker.go()
            seconds: dict[str, float] = json.loads(worker.line())
    return seconds


def _statements(options: Options, count: int) -> Row:
    keys = deliveries.new_keys()
    with logging_server(options) as server, server.database() as database, listening(PARTNERS) as ports:
        assert server.log is not None
        deliveries.fill(database, keys, ports, count)
        _tidy(database)
        with psycopg.connect(database, autocommit=True) as admin:
            admin.execute(f"ALTER DATABASE {admin.info.dbname} SET log_statement = 'all'")

        def drain() -> None:
            with child("deliveries", keys, "", database) as worker:
                worker.go()
                worker.wait()

        work, control, _ = counted(server.log, drain)
    row = Row("statements", "counted in the server's log")
    row.add({WORK: work / (count * PARTNERS), ALL: (work + control) / (count * PARTNERS)}, WORK)
    return row


def _tidy(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")
        connection.execute("CHECKPOINT")
