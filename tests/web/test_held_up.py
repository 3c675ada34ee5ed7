"""Whatever holds a job up is named by `doctor`, `status`, the first page and `why`: each kind, on a real database."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from html import unescape
from typing import get_args

import pytest
from sqlalchemy import Connection

from effects import Effects, Pause, Refused, Schedule, Snooze, Unknown, enqueue
from effects.model.advice import DoctorFinding
from effects.operate.evidence import WaitReason
from effects.operate.tables.held_up import HeldKind
from effects.web import Person, dashboard
from tests.conftest import AppFactory
from tests.support.commands import command
from tests.support.manual_workers import ManualWorker, run_sql
from tests.support.sampling import sample
from tests.support.scripted import Scripted
from tests.support.waiting import wait_until
from tests.web.browsing import Visitor

# Reasons to wait of the ordinary course, and those of the workers, which have lines of their own.
ORDINARY = {"due_later", "group_head", "cap", "rate", "free_worker", "no_worker", "no_worker_for_queue"}
LACKING = Snooze(60, "EFFECTS_SMTP_URL is not set", ages=False, code="waits_for_operator")
LOGIN = Pause(60, "the login is refused", code="smtp_535", then=(120,))


def put_off(app: Effects, outcome: object, **options: object) -> int:
    job_id = enqueue("scripted", {}, effects=app, **options).job_id  # type: ignore[arg-type]
    worker = ManualWorker(app)
    worker.settle((worker.claim_one(), outcome))  # type: ignore[arg-type]
    return job_id


def due_again(app: Effects) -> int:
    """Before the first reader looks, or it would say another thing than the last one."""
    job_id = put_off(app, Pause(60, "no relaying", code="smtp_550"))
    run_sql(app, f"UPDATE effects_jobs SET run_at = {app.store.sql.after('-1')}")
    return job_id


def of_paused_queue(app: Effects) -> int:
    job_id = enqueue("scripted", {}, effects=app).job_id
    command(app, "queues", "pause", "default", "--reason", "a release")
    return job_id


def paused_by_a_person(app: Effects) -> int:
    job_id = enqueue("scripted", {}, limit_key="partner", effects=app).job_id
    command(app, "limits", "pause", "partner", "--create", "--for", "1h", "--reason", "a release")
    return job_id


def half_open(app: Effects) -> int:
    job_id = put_off(app, LOGIN, limit_key="partner")
    run_sql(app, f"UPDATE effects_limits SET paused_until = {app.store.sql.after('-1')}")
    return job_id


def trying(app: Effects) -> int:
    half_open(app)
    job_id = enqueue("scripted", {}, limit_key="partner", effects=app).job_id
    ManualWorker(app).claim_one()
    return job_id


def below_a_paused_parent(app: Effects) -> int:
    command(app, "limits", "set", "partner", "--create", "--rate", "9/1s")
    command(app, "limits", "set", "partner:eu", "--create", "--parent", "partner")
    return put_off(
        app, Pause(60, "the login is refused", code="smtp_535", parent=True, then=(120,)), limit_key="partner:eu"
    )


def of_a_blocked_group(app: Effects) -> int:
    job_id = enqueue("scripted", {}, group_key="orders", effects=app).job_id
    run_sql(app, "UPDATE effects_job_groups SET blocked = true")
    return job_id


def of_an_unknown_type(app: Effects) -> int:
    run_sql(app, "INSERT INTO effects_jobs (id, job_type) VALUES (7, 'gone.type')")
    return 7


def in_an_unserved_queue(app: Effects) -> int:
    ManualWorker(app)
    run_sql(app, "INSERT INTO effects_jobs (id, job_type, queue) VALUES (7, 'scripted', 'nowhere')")
    return 7


def died(app: Effects) -> int:
    return put_off(app, Refused("the recipient is suppressed", code="suppressed"))


# What makes it; what all four readers say.
CASES: dict[str, tuple[Callable[[Effects], int], str, HeldKind | None, set[WaitReason]]] = {
    "a paused queue": (of_paused_queue, "a release", "queue_paused", {"queue_paused"}),
    "a key paused by a person": (paused_by_a_person, "a release", "limit_paused", {"limit_paused"}),
    "a throttle": (lambda app: put_off(app, Pause(60, "slow down"), limit_key="partner"), "slow down", "limit_paused",
                   set()),
    "a refused login": (lambda app: put_off(app, LOGIN, limit_key="partner"), "the login is refused", "limit_paused",
                        {"breaker"}),
    "a refused login of a parent": (below_a_paused_parent, "the login is refused", "limit_paused", set()),
    "after a refused login": (half_open, "the login is refused", "half_open", set()),
    "a trial": (trying, "partner", "half_open", {"trial"}),
    "a setting that workers lack": (lambda app: put_off(app, LACKING), "EFFECTS_SMTP_URL is not set", "operator",
                                    {"operator"}),
    "a refusal that is held": (lambda app: put_off(app, Pause(0, "no relaying", code="smtp_550", after_seconds=60)),
                               "no relaying", "put_off", set()),
    "the same, due again": (due_again, "no relaying", "put_off", set()),
    "a snooze": (lambda app: put_off(app, Snooze(60, "not paid yet")), "not paid yet", "put_off", set()),
    "a snooze without a reason": (lambda app: put_off(app, Snooze(60)), "scripted", "put_off", set()),
    "a blocked group": (of_a_blocked_group, "orders", "group_blocked", {"group_blocked"}),
    "an unknown job type": (of_an_unknown_type, "gone.type", "type_not_registered", {"type_not_registered"}),
    "a queue that no one serves": (in_an_unserved_queue, "nowhere", "queue_unserved", set()),
    "a dead letter": (died, "suppressed", None, set()),
    "an unknown outcome": (lambda app: put_off(app, Unknown("no reply", code="lost_reply"), on_unknown="hold"),
                           "lost_reply", None, set()),
}  # fmt: skip


@pytest.fixture
def app(app_factory: AppFactory) -> Effects:
    return app_factory(job_types=[Scripted()])


def first_page(app: Effects, page: str = "/") -> str:
    board = dashboard(guard=lambda request: Person("ann", role="viewer"), effects=app)
    try:
        visitor = Visitor(board)
        wait_until(lambda: "is still being counted" not in visitor.get(page).text)
        text = visitor.get(page).text
    finally:
        board.close()
    return unescape(re.sub(r"<[^>]+>", "", text))


@pytest.mark.parametrize("case", sample(CASES, 9))
def test_each_wait_is_named_by_doctor_status_overview_and_why(app: Effects, case: str) -> None:
    make, words, kind, reasons = CASES[case]
    job_id = make(app)
    doctor, status = command(app, "doctor"), command(app, "status")
    evidence = command(app, "why", job_id)
    texts = {"doctor": doctor.out, "status": status.out, "the first page": first_page(app), "why": evidence.out}
    assert {name for name, text in texts.items() if words not in text} == set()
    if kind is not None:
        [held] = [held for held in command(app, "status", "--json").json["held_up"] if held["kind"] == kind]
        assert held["ends"]
        for text in (doctor.out, status.out, texts["the first page"]):
            assert re.sub(r"\W+", "", held["text"]) in re.sub(r"\W+", "", text)
        if held["until"] is not None:
            assert held["until"][:10] in held["text"], "when it tries next"
    if reasons:
        assert {command(app, "why", job_id, "--json").json[0]["waits"]["reason"]} == reasons
    quiet = command(app, "doctor", "--quiet")
    assert (words in quiet.out) is (not case.startswith("a snooze")), "an app's own snooze is no problem"


def test_a_paused_schedule_is_named(app_factory: AppFactory) -> None:
    app = app_factory(job_types=[Scripted()], schedules=[Schedule("nightly", "scripted", cron="0 3 * * *")])
    command(app, "init")
    command(app, "schedules", "pause", "nightly")
    for text in (command(app, "doctor").out, command(app, "status").out, first_page(app)):
        assert "schedule nightly is paused" in text


class Shop(Scripted):
    """A package with a partner that fails, and one whose rows cannot be read."""

    def __init__(self, name: str, finding: DoctorFinding | None) -> None:
        super().__init__(name)
        self.finding = finding

    def examine_rows(self, connection: Connection) -> Iterator[DoctorFinding]:
        if self.finding is None:
            raise ValueError("rosebud")
        yield self.finding


def test_what_packages_say_is_named_whatever_another_one_cannot_read(app_factory: AppFactory) -> None:
    finding = DoctorFinding("partners", "warning", "partner 7 answers nothing", "call them")
    app = app_factory(job_types=[Shop("odd.shop", None), Shop("shop", finding)])
    run_sql(app, "INSERT INTO effects_jobs (job_type, queue) VALUES ('shop', 'nowhere')")
    pages = (first_page(app), first_page(app, "/needs"))
    for text in (command(app, "doctor").out, command(app, "status").out, *pages):
        assert "partner 7 answers nothing" in text
        assert "odd.shop: its rows cannot be read" in text
        assert "rosebud" not in text
        assert "queue nowhere: 1 job due, no worker serves it" in text
    assert "Nothing needs attention" not in pages[0]


def test_the_table_has_every_kind() -> None:
    assert {kind for _, _, kind, _ in CASES.values()} - {None} == set(get_args(HeldKind)) - {
        "schedule_paused",
        "package",
    }
    assert {reason for *_, reasons in CASES.values() for reason in reasons} | ORDINARY == set(get_args(WaitReason))
