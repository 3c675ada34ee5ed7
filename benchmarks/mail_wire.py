"""Receipts over one connection whose round trip takes 20 ms: pipelining beside smtplib's command by command."""

from __future__ import annotations

from benchmarks.drains import drain_postgresql
from benchmarks.mail import COLUMN, bare_seconds, system
from benchmarks.mail_servers import sink, slow_wire
from benchmarks.options import Options
from benchmarks.rounds import Contender, Report, goal_and_aim, interleave

MESSAGES, MESSAGES_MIN = 200, 50
ROUND_TRIP_MILLISECONDS = 20
OURS, PLAIN = "effects, one connection", "smtplib.send_message"
FACTORS = (3.0, 4.0)  # goal and aim


def run(options: Options) -> Report:
    count = max(MESSAGES_MIN, options.size(MESSAGES))

    def ours() -> float:
        with options.server.database() as database, sink() as port, slow_wire(ROUND_TRIP_MILLISECONDS, port) as far:
            return drain_postgresql(system(far, count, "?connections=1"), database, count)

    def plain() -> float:
        with sink() as port, slow_wire(ROUND_TRIP_MILLISECONDS, port) as far:
            return count / bare_seconds(1, count, far)

    contenders = [
        Contender(
            OURS,
            "each message's MAIL, RCPT and DATA in one write with the dot before; the mark's commit behind that",
            ours,
        ),
        Contender(PLAIN, "one connection kept open", plain),
    ]
    rows = interleave(contenders, options.rounds, COLUMN, options.say)
    title = f"{count} receipts over one connection with a round trip of {ROUND_TRIP_MILLISECONDS} ms"
    report = Report("mail_wire", title, [COLUMN], rows, baseline=PLAIN, decimals=1)
    ratio = report.row(OURS).median(COLUMN) / report.row(PLAIN).median(COLUMN)
    report.goals = goal_and_aim("effects / smtplib.send_message", ratio, FACTORS)
    return report
