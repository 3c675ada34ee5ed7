"""Receipts to smtp-sink: the real worker, beside a loop that renders, builds and sends with smtplib."""

from __future__ import annotations

from benchmarks.drains import System, drain_postgresql
from benchmarks.mail_servers import sink
from benchmarks.options import Options
from benchmarks.processes import child
from benchmarks.rounds import Contender, Goal, Report, interleave
from benchmarks.systems import django_mailer, mail
from effects import Settings

MESSAGES = 5_000
COLUMN = "messages/s"
OURS, BARE, READY, DJANGO = "effects", "bare loop", "bare loop, ready bytes", "django-mailer"
SHARE = 0.7
THREADS = Settings().threads


def run(options: Options) -> Report:
    count = options.size(MESSAGES)

    def ours() -> float:
        with options.server.database() as database, sink() as port:
            return drain_postgresql(system(port, count), database, count)

    def bare() -> float:
        with sink() as port:
            return count / bare_seconds(THREADS, count, port)

    def ready() -> float:
        with sink() as port:
            return count / bare_seconds(THREADS, count, port, ready=True)

    def django() -> float:
        with options.server.database() as database, sink() as port:
            return drain_postgresql(django_mailer.system(port), database, count)

    contenders = [
        Contender(OURS, f"defaults: {THREADS} threads; rendered at the call, sealed, every mark and record", ours),
        Contender(BARE, f"{THREADS} threads: Jinja2, css-inline, EmailMessage, smtplib; no database", bare),
        Contender(READY, f"{THREADS} threads: smtplib alone; nothing to render, to build or to record", ready),
        Contender(DJANGO, "its send_all, one connection; a transaction a message, body as a pickle", django),
    ]
    rows = interleave(contenders, options.rounds, COLUMN, options.say)
    title = f"{count:,} receipts of about 5 KB to smtp-sink on loopback, one process, PostgreSQL"
    report = Report("mail", title, [COLUMN], rows, baseline=BARE)
    ratio = report.row(OURS).median(COLUMN) / report.row(BARE).median(COLUMN)
    report.goals = [Goal("effects / bare loop", ratio, SHARE)]
    report.notes = [
        "effects and django-mailer render at the call, outside of this clock; the bare loop renders inside of it.",
    ]
    return report


def system(port: int, count: int, options: str = "") -> System:
    """Messages as a queue that is filled and drained.

    Args:
        options: of the transport's URL.
    """
    keys, url = mail.new_keys(), f"smtp://127.0.0.1:{port}{options}"

    def fill(database: str, jobs: int) -> None:
        mail.fill(database, keys, url, jobs)

    return System("mail", (keys, url, ""), fill, "effects_jobs", "status = 'queued'")


def bare_seconds(threads: int, count: int, port: int, *, ready: bool = False) -> float:
    with child("bare_mail", str(threads), str(count), str(port), "ready" if ready else "") as loop:
        loop.go()
        return float(loop.line())
