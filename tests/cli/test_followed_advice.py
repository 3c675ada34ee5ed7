"""Advice is followed: in every state that gives some, each command that is named is typed, and changes the state.

A command that only looks shows something. `EFFECTS_TEST_FULL=1` runs all states, and compares what was said with every
text of the sources that names a command.
"""

from __future__ import annotations

import ast
import itertools
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pytest

from effects import Effects, Pause, Retry
from effects_webhooks import add_endpoint
from tests.cli.conftest import ROOT
from tests.conftest import AppFactory
from tests.support.commands import command
from tests.support.effect_states import KINDS, STATES, EffectStates, effects_app
from tests.support.manual_workers import ManualWorker, rows, run_sql
from tests.support.sampling import is_full, sample
from tests.support.waits import REASONS, live, waits

SOURCES = ("effects", "email/effects_email", "webhooks/effects_webhooks", "reports/effects_reports")
BLOCKED = "set `blocked` to false in its row of effects_job_groups"
LOOKS = re.compile(r"(why|status|doctor|audit|keys generate|\S+ (\w+ )?(show|list|causes|deliveries|events|--help))\b")
# What an operator changes, without the times at which it was touched.
TABLES = ("jobs", "job_history", "effect_ledger", "limits", "queues", "job_groups", "job_definitions", "workers",
          "bulk_actions", "unresolved", "sent_emails", "webhook_endpoints")  # fmt: skip
TOUCHED = ("updated_at", "created_at", "seen_at", "claimed_at", "settled_at", "fired_at")

COUNTS = itertools.count(100, 100)

Question: TypeAlias = tuple[object, ...]  # a command whose answer has advice


class Case(NamedTuple):
    name: str
    make: Callable[[Effects], Question]


def waiting(make: Callable[[Effects], int], *words: str) -> Case:
    def question(app: Effects) -> Question:
        job_id = make(app)
        return (*words, job_id) if words[0] in ("why", "jobs") else words

    return Case(f"{make.__name__}: {' '.join(words)}", question)


def effect(kind: str, state: str, *words: str) -> Case:
    def question(app: Effects) -> Question:
        states = EffectStates(app)
        states.count = next(COUNTS)  # its keys are new
        return (*words, states.make(kind, state).newest) if words != ("dead", "list") else words

    return Case(f"{kind}, {state}: {' '.join(words)}", question)


def asked(*words: object) -> Case:
    return Case(" ".join(map(str, words)), lambda app: words)


def behind_a_later_head(app: Effects) -> int:
    worker = ManualWorker(app)
    head, behind = (live(app, group_key="g") for _ in range(2))
    worker.settle((worker.claim_one(), Retry("busy", after_seconds=600)))
    assert waits(app, behind).job_id == head
    return behind


def behind_a_paused_head(app: Effects) -> int:
    ManualWorker(app)
    live(app, group_key="g", limit_key="partner")
    command(app, "limits", "pause", "partner", "--create", "--reason", "a test")
    return live(app, group_key="g")


def in_a_failing_backlog(app: Effects) -> int:
    worker = ManualWorker(app)
    job_id = live(app)
    worker.settle((worker.claim_one(), Retry("busy", code="http 503", after_seconds=1)))
    app.store.shift_clock(1000)
    return job_id


def of_an_unserved_queue(app: Effects) -> int:
    run_sql(app, "INSERT INTO effects_jobs (job_type, payload, queue) VALUES ('scripted', '{}', 'emials')")
    return int(rows(app, "jobs")[0]["id"])


def put_off_by_its_answer(app: Effects) -> int:
    worker = ManualWorker(app)
    job_id = live(app)
    worker.settle((worker.claim_one(), Pause(9000, "no relaying", code="smtp_550")))
    return job_id


def without_a_worker(app: Effects) -> int:
    job_id = live(app)
    app.store.shift_clock(1000)
    return job_id


def of_a_paused_schedule(app: Effects) -> Question:
    command(app, "schedules", "add", "nightly", "--type", "scripted", "--cron", "0 7 * * *")
    assert command(app, "schedules", "pause", "nightly", "--reason", "a test").exit_code == 0
    return ("status",)


def requeued_already(app: Effects) -> Question:
    states = EffectStates(app)
    states.count = next(COUNTS)
    return "jobs", "show", states.make("held", "requeued").first


def of_an_endpoint(*words: str) -> Case:
    """A command about an endpoint that takes every type."""

    def question(app: Effects) -> Question:
        return (*words, add_endpoint("https://partner.example/in", ["*"], effects=app).id)

    return Case(" ".join(words), question)


def of_a_failing_endpoint(app: Effects) -> Question:
    states = EffectStates(app)
    states.count = next(COUNTS)
    run_sql(app, "DELETE FROM effects_webhook_health")  # of endpoints of before, whose deliveries are gone
    endpoint = states.make("webhook", "refused").endpoint
    run_sql(
        app, "INSERT INTO effects_webhook_health (endpoint_id, failing_since, failed_messages, updated_at) "
        f"VALUES (:id, {app.store.sql.after('-3600')}, 1, {app.store.sql.now})", id=endpoint,
    )  # fmt: skip
    return ("status",)


def pressed_twice(app: Effects) -> Question:
    return "retry", of_an_unserved_queue(app)


LOOKED_AT = (("why",), ("jobs", "show"), ("status",), ("doctor",))
WAITS = (*(reason[0] for reason in REASONS), behind_a_later_head, behind_a_paused_head, in_a_failing_backlog,
         of_an_unserved_queue, put_off_by_its_answer, without_a_worker)  # fmt: skip
CASES = [
    *(waiting(make, *words) for make in WAITS for words in LOOKED_AT),
    *(effect(kind, state, *words) for kind in KINDS for state in STATES
      for words in (("why",), ("retry",), ("cancel",), ("dead", "list"))),
    Case("retried in an unserved queue", pressed_twice),
    Case("a paused schedule", of_a_paused_schedule),
    Case("requeued already", requeued_already),
    Case("a failing endpoint", of_a_failing_endpoint),
    of_an_endpoint("webhooks", "test"),
    *(asked(*words) for words in (
        ("limits", "show", "nope"), ("workers", "drain", "nope"), ("workers", "drain"), ("bulk", "show", 999),
        ("queues", "resume", "nope"), ("failovers", "resolve", 999), ("webhooks", "endpoints", "show", "ep_nope"),
        ("retry", "msg_nope"), ("email", "show", "nope"), ("reports", "show", "run_nope"),
        ("jobs", "show", 999), ("email", "preview", "nope"), ("web", "sessions", "end", "nope"),
        ("keys", "retire", "k1"), ("reports", "list", "--status", "running"),
    )),
]  # fmt: skip


def advised(answer: str) -> list[list[str]]:
    """The commands in an answer, with a reason where one is asked for."""
    lines = dict.fromkeys(re.findall(r"`(effects [a-z][^`]*)`", answer))
    return [shlex.split(line.replace("REASON", "a-test"))[1:] for line in lines]


def state_of(app: Effects) -> list[dict[str, Any]]:
    """All rows that an operator's action may change."""
    return [
        {"table": table, **{name: value for name, value in row.items() if name not in TOUCHED}}
        for table in TABLES
        for row in rows(app, table)
    ]


def answer_to(app: Effects, case: Case) -> str:
    """What is said in a state that begins with no job, limit, group and worker."""
    app.store.shift_clock(0)
    for table in ("jobs", "job_history", "job_groups", "limits", "queues", "workers", "effect_ledger"):
        run_sql(app, f"DELETE FROM effects_{table}")
    answer = command(app, *case.make(app))
    return f"{answer.out}{answer.err}"


def follow(app: Effects, words: list[str]) -> tuple[str, str | None]:
    """Type the command. Returns what it said, and what is wrong with it: it neither changed nor showed anything."""
    before = state_of(app)
    answer = command(app, *words, *(["--drain"] if words[0] == "work" and "--drain" not in words else []))
    looks = LOOKS.match(" ".join(words)) is not None
    works = answer.exit_code == 0 or (looks and answer.exit_code == 1)
    has_effect = answer.out.strip() if looks else state_of(app) != before
    return f"{answer.out}{answer.err}", None if works and has_effect else f"{shlex.join(words)}: {answer}"


@pytest.fixture
def app(app_factory: AppFactory, tmp_path: Path) -> Effects:
    return effects_app(app_factory, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1200 if is_full() else 120)
def test_what_is_advised_changes_the_state(app: Effects) -> None:
    said, wrong = list[str](), dict[str, str]()
    for case in sample(CASES, 12):
        number = 0
        while number < len(advised(answer := answer_to(app, case))):
            followed, fault = follow(app, advised(answer)[number])
            said += [answer, followed]
            wrong |= {f"{case.name}, advice {number}": fault} if fault is not None else {}
            number += 1
        said.append(answer)
        if BLOCKED in answer:
            run_sql(app, "UPDATE effects_job_groups SET blocked = false")
            assert "is blocked" not in command(app, "status").out
    print(*(f"{name}: {fault}" for name, fault in wrong.items()), sep="\n")
    assert wrong == {}
    if is_full():
        answers = " ".join("".join(said).split())
        unsaid = [(text, where) for text, where in catalogue() if not was_said(text, answers)]
        print(*(f"elsewhere ({_reason(text)}): {where}: {text!r}" for text, where in unsaid), sep="\n")
        assert [(where, text) for text, where in unsaid if _reason(text) is None] == []


def _reason(text: str) -> str | None:
    return next((reason for fragment, reason in ELSEWHERE.items() if fragment in text), None)


# Fragments of the texts that no state here makes: where they are said, and followed where that can be. A text that has
# none of these must be reached above.
ELSEWHERE = {
    "`effects keys": "keys that are missing or old: tests/cli/test_keys.py, tests/security",
    "`effects init`": "a database of another release, Alembic: tests/upgrades, tests/core/test_alembic.py",
    "run `\0`": "a database without tables: tests/cli/test_main.py, tests/core/test_hints.py",
    "`effects failovers": "a failover: tests/failover, tests/conformance/test_unresolved_failovers.py",
    "that a failover lost": "a failover: tests/conformance/test_write_back.py",
    "`effects bulk show": "an action on hundreds of jobs: tests/cli/test_bulk_commands.py",
    "its job has ended: `effects retry": "a bulk action whose job died: tests/cli/test_bulk_commands.py",
    "`effects email login": "a mail account by OAuth: tests/email/wire/test_oauth.py",
    "`effects email bounces`": "a mailbox by OAuth: tests/docs/test_findings.py",
    "on the suppression list": "a mail to a suppressed address: tests/cli/test_advice.py",
    "is tried again after": "a report's failing step: tests/reports/test_report_commands.py",
    "start one with": "a report that is waited for: tests/reports/test_report_commands.py",
    "`effects reports": "a report's own ends: tests/reports",
    "`\0` takes up its run": "a report's own ends: tests/reports",
    "run `effects work` without --drain": "a report's snapshot in a drain: tests/reports",
    "there is no bucket": "tests/reports/test_report_chains.py",
    "What followed, job": "what followed from a report: tests/reports/test_report_chains.py",
    "\0 no longer holds the key": "no state here makes a key that has moved",
    "`effects dead": "an alert, and the doctor's: tests/core/test_alerts.py, tests/docs/test_findings.py",
    "`effects schedules list`": "the doctor's: tests/docs/test_findings.py",
    "by `effects prune`": "the doctor's: tests/docs/test_findings.py",
    "listed by `effects status`": "the doctor's: tests/docs/test_findings.py",
    "`effects doctor`": "a database that fails while it is read: tests/web/test_pages.py",
    "by `effects limits set`": "a mistake where a job is declared: tests/mistakes",
    "there is no field": "a redacted text; what it quotes is a field: tests/core/test_plain_sql.py",
    "effects_enqueue": "a function in SQL: tests/cli/test_grants.py",
    "and are left alone: decide with": "a preview of many: tests/cli/test_retry.py",
    "only an ended job can be retried": "a call of the app's own: tests/core/test_actions.py",
    "is not unknown: `effects retry": "a decision about what is decided: tests/cli/test_retry.py",
    "the message has no template": "tests/email/messages/test_email_commands.py",
    "plans it again": "a report's own ends: tests/reports",
    "`effects webhooks endpoints enable": "a disabled endpoint: tests/webhooks/test_webhook_commands.py",
    "begin a transaction with": "code of the app, not a command",
    "no endpoint takes it": "where no endpoint fits: tests/webhooks/test_webhook_commands.py",
    "there is no active endpoint": "where no endpoint fits: tests/webhooks/test_webhook_commands.py",
    "does not accept the signature": "an explanation with several causes: tests/webhooks",
}


# -- the catalogue -------------------------------------------------------------------------------------------


def catalogue() -> Iterator[tuple[str, str]]:
    """Each text of the sources that names a command, NUL for what is filled in, and its file and line."""
    for source in sorted(path for folder in SOURCES for path in (ROOT / folder).rglob("*.py")):
        tree = ast.parse(source.read_text(encoding="utf-8"))
        left_out = set(_left_out(tree))
        for node in ast.walk(tree):
            text = None if id(node) in left_out else _text_of(node)
            if text is not None and re.search(r"`(effects [a-z]|\0)", text):
                yield text, f"{source.relative_to(ROOT)}:{node.lineno}"  # type: ignore[attr-defined]


def _left_out(tree: ast.Module) -> Iterator[int]:
    """Docstrings, the help of options, and parts of a text that is looked at as a whole."""
    described = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, described) and node.body and isinstance(node.body[0], ast.Expr):
            yield id(node.body[0].value)
        elif isinstance(node, ast.keyword) and node.arg == "help":
            yield from map(id, ast.walk(node.value))
        elif isinstance(node, ast.JoinedStr):
            yield from (id(part) for part in node.values)


def _text_of(node: ast.AST) -> str | None:
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "\0" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def was_said(text: str, answers: str) -> bool:
    """Whether an answer has the text, with anything where it is filled in."""
    parts = re.split(r"\0|\{\w+\}", " ".join(text.split()))
    return re.search(".{0,200}?".join(map(re.escape, parts)), answers) is not None
