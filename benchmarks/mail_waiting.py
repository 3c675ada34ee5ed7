"""Receipts to a provider whose API answers after 200 ms: with defaults, on the event loop, and ten at a time."""

from __future__ import annotations

from functools import partial

from benchmarks.drains import System, drain_postgresql
from benchmarks.options import Options
from benchmarks.processes import Child, child
from benchmarks.rounds import Contender, Goal, Report, interleave
from benchmarks.systems import mail, partners

MESSAGES, MESSAGES_MIN = 10_000, 500
TEN_MESSAGES = 300  # with ten at a time a round would take minutes
ANSWER_SECONDS = 0.2
RATE, CPU = "messages/s", "CPU µs a message"
DEFAULTS, TEN = "defaults", "ten at a time"
RATE_GOAL = 500.0


def run(options: Options) -> Report:
    count = max(MESSAGES_MIN, options.size(MESSAGES))
    contenders = [
        Contender(DEFAULTS, "1,024 in flight, on the event loop", partial(_measure, options, count, "")),
        Contender(TEN, "EFFECTS_QUEUES=emails=10, as once by threads", partial(_measure, options, TEN_MESSAGES, "10")),
    ]
    rows = interleave(contenders, options.rounds, RATE, options.say)
    title = f"receipts of about 5 KB to a provider's API that answers after {ANSWER_SECONDS * 1000:.0f} ms, PostgreSQL"
    report = Report("mail_waiting", title, [RATE, CPU], rows, baseline=TEN)
    report.goals = [Goal(RATE, report.row(DEFAULTS).median(RATE), RATE_GOAL)]
    report.notes = [
        "Postmark's API as it is published, by a stand-in on loopback, HTTP without TLS; each message is released.",
        f"With ten at a time only {TEN_MESSAGES} are sent, so that their CPU is mostly the worker's start.",
    ]
    return report


def _measure(options: Options, count: int, in_flight: str) -> dict[str, float]:
    keys, seconds = mail.new_keys(), list[float]()

    def ended(worker: Child) -> None:
        seconds.append(float(worker.line()))

    with (
        options.server.database() as database,
        child("partners", "1", partners.QUIET, str(ANSWER_SECONDS)) as process,
    ):
        process.go()
        [port] = partners.ports(process.line())
        url = f"postmark://token@?origin=http://127.0.0.1:{port}"

        def fill(database: str, jobs: int) -> None:
            mail.fill(database, keys, url, jobs)

        system = System("mail", (keys, url, in_flight), fill, "effects_jobs", "status = 'queued'")
        rate = drain_postgresql(system, database, count, ended)
    return {RATE: rate, CPU: seconds[0] / count * 1e6}
