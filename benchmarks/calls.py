"""What a call costs the app that waits for it, inside a transaction of its own: CPU, and SQL statements.

A transaction with a row of the app's, and the same with one call more: the difference is what the call added, to the
calling thread and to the whole process, in which the hint to workers is sent after the commit.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial

import psycopg
from sqlalchemy import text
from sqlalchemy.orm import Session

from benchmarks.drains import payload
from benchmarks.options import Options
from benchmarks.rounds import Contender, Goal, Report, goal_and_aim, interleave
from benchmarks.statements import counted, logging_server
from benchmarks.systems import mail, ours
from effects import Effects, enqueue
from effects_email import send_templated_email
from effects_webhooks import WebhookEvent, add_endpoint, deliver_webhook

CALLS, CALLS_MIN, WARM_UP = 500, 100, 50
STATEMENT_CALLS = 50
THREAD, PROCESS, STATEMENTS = "CPU ms of the thread", "CPU ms of the process", "statements"
BARE = "the app's own row"
ENQUEUE, EMAIL, WEBHOOK = "enqueue", "send_templated_email", "deliver_webhook"
SETTINGS = {
    BARE: "a Session, one INSERT, a commit",
    ENQUEUE: "the same, and a job of 200 bytes",
    EMAIL: "the same, and a receipt of about 5 KB with a style sheet, rendered and sealed",
    WEBHOOK: "the same, and an event for one endpoint",
}
ENQUEUE_MS, EMAIL_MS, WEBHOOK_STATEMENTS = (0.2, 0.12), 0.6, 3  # of the first goal and aim
Call = Callable[[Session, int], object]


def run(options: Options) -> Report:
    count = max(CALLS_MIN, options.size(CALLS))
    with logging_server(options) as server, server.database() as database:
        assert server.log is not None
        effects = _installed(database)
        calls = _calls(effects)
        numbers = iter(range(0, 1_000_000_000, 1_000_000))  # no two calls ask for the same
        for call in calls.values():
            _transactions(effects, call, _range(next(numbers), WARM_UP))
        contenders = [
            Contender(name, SETTINGS[name], partial(_measure, effects, call, numbers.__next__, count))
            for name, call in calls.items()
        ]
        rows = interleave(contenders, options.rounds, THREAD, options.say)
        with psycopg.connect(database, autocommit=True) as admin:
            admin.execute(f"ALTER DATABASE {admin.info.dbname} SET log_statement = 'all'")
        effects.engine.dispose()
        for row in rows:
            act = partial(_transactions, effects, calls[row.name], _range(numbers.__next__(), STATEMENT_CALLS))
            row.add({STATEMENTS: counted(server.log, act).work / STATEMENT_CALLS - 1}, STATEMENTS)
        effects.dispose()
    report = Report(
        "calls", f"one call in a transaction of the app, {count} of each", [THREAD, PROCESS, STATEMENTS], rows
    )
    report.decimals = 3
    report.goals = _goals(report)
    report.notes = [
        "CPU of whole transactions; a goal is about what a call adds to the thread's, beside the app's own row.",
        "Statements without BEGIN and COMMIT, without the app's own and without the hint that follows the commit.",
    ]
    return report


def _goals(report: Report) -> list[Goal]:
    enqueue_ms, email_ms = _added(report, ENQUEUE), _added(report, EMAIL)
    statements = report.row(WEBHOOK).median(STATEMENTS)
    return [
        *goal_and_aim("enqueue, CPU ms added", enqueue_ms, ENQUEUE_MS, at_least=False),
        Goal("send_templated_email, CPU ms added", email_ms, EMAIL_MS, at_least=False),
        Goal("deliver_webhook, statements", statements, WEBHOOK_STATEMENTS, at_least=False),
    ]


def _added(report: Report, name: str) -> float:
    """The median over the rounds of what this one cost more than the app's own row in the same round."""
    pairs = zip(report.row(name).samples[THREAD], report.row(BARE).samples[THREAD], strict=True)
    return statistics.median(with_call - without for with_call, without in pairs)


def _installed(database: str) -> Effects:
    keys = mail.new_keys()
    url = ours.effects_url(database)
    effects = Effects(
        url, keys=keys, log_level="WARNING", smtp_url="smtp://127.0.0.1:2525", email_from=mail.SENDER,
        templates=mail.TEMPLATES, job_types=[ours.Noop()], allow_private_addresses=True,
    )  # fmt: skip
    effects.create_tables()
    add_endpoint("http://127.0.0.1:8000/webhooks", effects=effects)
    with Session(effects.engine) as session, session.begin():
        session.execute(text("CREATE TABLE shop_orders (id bigint PRIMARY KEY, note text NOT NULL)"))
    return effects


def _calls(effects: Effects) -> Mapping[str, Call]:
    def templated(session: Session, number: int) -> object:
        return send_templated_email(
            mail.TEMPLATE, to=mail.recipient(number), context=mail.context(number), event_id=f"order:{number}",
            session=session, effects=effects,
        )  # fmt: skip

    return {
        BARE: lambda session, number: None,
        ENQUEUE: lambda session, number: enqueue(ours.JOB_TYPE, payload(number), session=session, effects=effects),
        EMAIL: templated,
        WEBHOOK: lambda session, number: deliver_webhook(
            WebhookEvent("order.paid", payload(number)), session=session, effects=effects
        ),
    }


def _measure(effects: Effects, call: Call, number: Callable[[], int], count: int) -> dict[str, float]:
    numbers = _range(number(), count)
    thread, process = time.thread_time(), time.process_time()
    _transactions(effects, call, numbers)
    return {
        THREAD: (time.thread_time() - thread) / count * 1000,
        PROCESS: (time.process_time() - process) / count * 1000,
    }


def _range(first: int, count: int) -> range:
    return range(first, first + count)


_ROW = text("INSERT INTO shop_orders (id, note) VALUES (:id, 'paid')")


def _transactions(effects: Effects, call: Call, numbers: range) -> None:
    for number in numbers:
        with Session(effects.engine) as session, session.begin():
            session.execute(_ROW, {"id": number})
            call(session, number)
