"""Each action that the packages declare leaves one entry in the audit log: none if it was rolled back or refused."""

from __future__ import annotations

import ast
import importlib
import inspect
import io
import pkgutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import msgspec
import pytest
from sqlalchemy import MetaData, event

import effects
import effects_email
import effects_reports
import effects_webhooks
from effects import Effects, EffectsError, Refused, Schedule, Unknown, cancel, enqueue, reschedule
from effects.app.firing import fire_now
from effects.app.retention import prune
from effects.keys.encryption import generate_key
from effects.kit import crashpoints
from effects.kit.exit_codes import ExitCode
from effects.operate.bulk import BulkStarted, act_on, cancel_bulk, carry_out, preview
from effects.operate.tables import actions, grants, sign_ins
from effects.operate.tables.actions import LogFilters, list_entries, note_look
from effects.operate.tables.bulk_rows import ChunkActor
from effects.operate.tables.bulk_selection import ActionName, BulkAction
from effects.operate.tables.dead_letters import DeadFilters
from effects.operate.tables.failovers import resolve_failover
from effects.operate.tables.job_list import Filters
from effects.operate.tables.rotate import rotate
from effects.store import schedules
from effects.store.audit_log import AuditAction
from effects.store.effects.requeue import ignore, requeue, resolve_unknown
from effects.store.limits import key_limits as limit_rows
from effects.store.limits import queue_pauses
from effects.store.queue import cancellation
from effects.store.recovery.comparison import Comparison, report
from effects.store.workers import end, note_failover
from effects_email import export_address, forget_address, send_templated_email
from effects_email.admin import requeue_email, send_test_email
from effects_email.oauth.logins import save_login
from effects_email.oauth.registration import OAuthClient, Tokens
from effects_email.suppression import suppress, unsuppress
from effects_reports import (
    BucketCredentials,
    add_bucket,
    cancel_report,
    pause_subscription,
    remove_bucket,
    request_report,
    resume_report,
    resume_subscription,
    rotate_bucket,
    subscribe,
    unsubscribe,
)
from effects_reports.admin import make_link, repair_reports, resume_failed, rewind_report
from effects_reports.tables import watermarks
from effects_webhooks import (
    ANY_TENANT,
    add_endpoint,
    cancel_delivery,
    change_endpoint,
    disable_endpoint,
    enable_endpoint,
    ensure_endpoint,
    list_deliveries,
    recover,
    replay_delivery,
    replay_event,
    send_test,
)
from effects_webhooks.admin.endpoints import REVEAL, note_endpoint
from effects_webhooks.admin.rotation import expire_secret, list_secrets, rotate_secret
from effects_webhooks.tables.schema import build_tables as build_webhook_tables
from tests.conftest import AppFactory
from tests.reports.shop import REPORTS
from tests.support.manual_workers import ManualWorker, row, rows, run_sql
from tests.support.scripted import Scripted

WHO: dict[str, Any] = {"actor": "web:ann", "reason": "because"}
ADDRESS = "ann@example.com"
CREDENTIALS = BucketCredentials("AKIAEXAMPLE", "secret")

Act: TypeAlias = Callable[[], object]
Prepare: TypeAlias = Callable[[Effects], Act]
ROLE = "pg_monitor"  # one that every server has


@pytest.fixture
def app(app_factory: AppFactory, tmp_path: Path) -> Effects:
    note = tmp_path / "templates" / "note"
    note.mkdir(parents=True)
    for part in ("subject.txt", "body.txt"):
        (note / part).write_text("A note", encoding="utf-8")
    return app_factory(
        job_types=[Scripted(), Scripted("held", on_unknown="hold")], keys=f"k1={generate_key()}", reports=REPORTS,
        storage_url=str(tmp_path / "files"), allow_private_addresses=True,
        smtp_url=f"maildir:{tmp_path}/mail", email_from="Shop <hello@shop.example>",
        templates=str(tmp_path / "templates"),
    )  # fmt: skip


def ended(app: Effects, ending: Any, job_type: str = "scripted", key: str = "k") -> int:
    job_id = enqueue(job_type, {}, key=key, effects=app).job_id
    manual_worker = ManualWorker(app, f"manual of {key}")
    manual_worker.settle((manual_worker.claim_one(), ending))
    return job_id


def waiting(app: Effects) -> int:
    return enqueue("scripted", {}, effects=app).job_id


def in_transaction(app: Effects, function: Callable[..., object], *args: Any, **options: Any) -> Act:
    def act() -> None:
        with app.store.begin() as connection:
            function(app.store, connection, *args, **options, **WHO)

    return act


def resolving(app: Effects, resolution: Any) -> Act:
    job_id = ended(app, Unknown("no reply"), "held")
    return lambda: resolve_unknown(app.store, app.job_types, app.ledgers, job_id, resolution, **WHO)


def scheduled(app: Effects) -> None:
    schedules.add(app.store, nightly(), actor="set-up")


def nightly() -> Schedule:
    return Schedule("nightly", "scripted", {}, "0 3 * * *")


def endpoint(app: Effects) -> str:
    return add_endpoint("https://partner.test/hook", actor="set-up", effects=app).id


def old_secret(app: Effects) -> str:
    endpoint_id = endpoint(app)
    rotate_secret(endpoint_id, actor="set-up", effects=app)
    return list_secrets(endpoint_id, effects=app)[-1].id


def run_id(app: Effects) -> str:
    return request_report(next(iter(REPORTS)).name, effects=app).run_id


def cancelled_run(app: Effects) -> str:
    cancel_report(run := run_id(app), actor="set-up", effects=app)
    return run


def prepare_cancel(app: Effects) -> Act:
    job_id = waiting(app)
    return lambda: cancellation.cancel(app.store, app.ledgers, job_id, **WHO)


def prepare_run_now(app: Effects) -> Act:
    job_id = waiting(app)
    return lambda: actions.run_now(app.store, job_id, **WHO)


def prepare_reschedule(app: Effects) -> Act:
    enqueue("scripted", {}, key="k", effects=app)
    return lambda: reschedule(key="k", run_at=datetime(2026, 1, 14, tzinfo=UTC), effects=app, **WHO)


def prepare_requeue(app: Effects) -> Act:
    job_id = ended(app, Refused("no"))
    return lambda: requeue(app.store, app.job_types, job_id, **WHO)


def prepare_ignore(app: Effects) -> Act:
    job_id = ended(app, Refused("no"))
    return lambda: ignore(app.store, app.ledgers, job_id, **WHO)


def prepare_drain(app: Effects) -> Act:
    name = ManualWorker(app).name
    return lambda: actions.request_drain(app.store, name, **WHO)


def prepare_forget(app: Effects) -> Act:
    name = ManualWorker(app).name
    end(app.store, name, ExitCode.PART_FAILED, "settler stalled")
    return lambda: actions.forget_worker(app.store, name, **WHO)


def prepare_limit_resume(app: Effects) -> Act:
    with app.store.begin() as connection:
        limit_rows.pause(app.store, connection, "l", actor="set-up", create=True)
    return in_transaction(app, limit_rows.resume, "l")


def prepare_queue_resume(app: Effects) -> Act:
    with app.store.begin() as connection:
        queue_pauses.pause(app.store, connection, "q", actor="set-up", create=True)
    return in_transaction(app, queue_pauses.resume, "q")


def prepare_schedule_pause(app: Effects) -> Act:
    scheduled(app)
    return lambda: schedules.pause(app.store, "nightly", **WHO)


def prepare_schedule_resume(app: Effects) -> Act:
    scheduled(app)
    schedules.pause(app.store, "nightly", actor="set-up")
    return lambda: schedules.resume(app.store, "nightly", **WHO)


def prepare_schedule_run(app: Effects) -> Act:
    scheduled(app)
    slot = datetime(2026, 1, 14, 3, tzinfo=UTC)
    return lambda: fire_now(app, "nightly", slot=slot, **WHO)


def prepare_unsuppress(app: Effects) -> Act:
    suppress(ADDRESS, actor="set-up", effects=app)
    return lambda: unsuppress(ADDRESS, actor=WHO["actor"], why=WHO["reason"], effects=app)


def on_endpoint(function: Callable[..., object], **options: Any) -> Prepare:
    def prepare(app: Effects) -> Act:
        endpoint_id = endpoint(app)
        return lambda: function(endpoint_id, effects=app, **options, **WHO)

    return prepare


def prepare_expire(app: Effects) -> Act:
    secret_id = old_secret(app)
    return lambda: expire_secret(secret_id, effects=app, **WHO)


def prepare_migrate(app: Effects) -> Act:
    """The tables of a package that was installed since the last `init`."""
    metadata = MetaData(schema=app.store.schema)
    build_webhook_tables(metadata)
    with app.store.begin() as connection:
        metadata.drop_all(connection)
    run_sql(app, "DELETE FROM effects_schema_version WHERE version_num = 'webhooks_0001'")
    return lambda: app.create_tables(**WHO)


def prepare_repair(app: Effects) -> Act:
    run_id(app)
    run_sql(app, "DELETE FROM effects_jobs")
    return lambda: repair_reports(effects=app, **WHO)


def prepare_report_cancel(app: Effects) -> Act:
    run = run_id(app)
    return lambda: cancel_report(run, effects=app, **WHO)


def subscription(app: Effects, **who: Any) -> str:
    return subscribe(
        "orders", to=ADDRESS, template="note", cron="0 2 * * *", link_to="https://shop.example", effects=app, **who
    )


def on_subscription(act: Callable[..., object]) -> Prepare:
    def prepare(app: Effects) -> Act:
        subscription_id = subscription(app, actor="set-up")
        return lambda: act(subscription_id, effects=app, **WHO)

    return prepare


def prepare_resume_subscription(app: Effects) -> Act:
    subscription_id = subscription(app, actor="set-up")
    pause_subscription(subscription_id, actor="set-up", effects=app)
    return lambda: resume_subscription(subscription_id, effects=app, **WHO)


def bucket(app: Effects, **who: Any) -> None:
    add_bucket("acme", "s3://acme-files?region=eu-central-1", CREDENTIALS, effects=app, **who)


def prepare_rotate_bucket(app: Effects) -> Act:
    bucket(app, actor="set-up")
    return lambda: rotate_bucket("acme", CREDENTIALS, effects=app, **WHO)


def prepare_remove_bucket(app: Effects) -> Act:
    bucket(app, actor="set-up")
    return lambda: remove_bucket("acme", effects=app, **WHO)


def prepare_link(app: Effects) -> Act:
    run = run_id(app)
    run_sql(app, "UPDATE effects_generated_reports SET artifact = 'a.csv', sha256 = '0123456789abcdef'")
    return lambda: make_link(run, "https://shop.example", effects=app, **WHO)


def prepare_rewind(app: Effects) -> Act:
    series = watermarks.series_of("fresh", b"{}")
    with app.store.begin() as connection:
        watermarks.hold(app.store, connection, series, "fresh", "rep_1")
    return lambda: rewind_report("fresh", effects=app, **WHO)


def prepare_report_resume(app: Effects) -> Act:
    run = cancelled_run(app)
    return lambda: resume_report(run, effects=app, **WHO)


def prepare_resume_failed(app: Effects) -> Act:
    cancelled_run(app)
    run_sql(app, "UPDATE effects_report_runs SET state = 'failed', error_code = 'storage_full'")
    return lambda: resume_failed("storage_full", effects=app, **WHO)


def prepare_cancel_by_key(app: Effects) -> Act:
    enqueue("scripted", {}, key="k", effects=app)
    return lambda: cancel(key="k", effects=app, **WHO)


def prepare_act_on(app: Effects) -> Act:
    job_id = ended(app, Refused("no"))
    return lambda: act_on(BulkAction("requeue"), [job_id], effects=app, **WHO)


def prepare_requeue_email(app: Effects) -> Act:
    send_templated_email("note", to=ADDRESS, context={}, key="k", effects=app)
    cancellation.cancel(app.store, app.ledgers, row(app, "jobs")["id"], actor="set-up")
    return lambda: requeue_email(app, "k", **WHO)


def delivery(app: Effects, *, withdrawn: bool = True) -> tuple[str, str]:
    """The ids of an event and of an endpoint that it was for; its delivery was cancelled."""
    endpoint_id = endpoint(app)
    event_id = send_test(endpoint_id, actor="set-up", effects=app).event_id
    if withdrawn:
        cancellation.cancel(app.store, app.ledgers, row(app, "jobs")["id"], actor="set-up")
    return event_id, endpoint_id


def on_delivery(function: Callable[..., object], *, withdrawn: bool = True) -> Prepare:
    def prepare(app: Effects) -> Act:
        ids = delivery(app, withdrawn=withdrawn)
        return lambda: function(*ids, effects=app, **WHO)

    return prepare


def prepare_replay_event(app: Effects) -> Act:
    event_id, _ = delivery(app)
    return lambda: replay_event(event_id, effects=app, **WHO)


def prepare_recover(app: Effects) -> Act:
    _, endpoint_id = delivery(app)
    return lambda: recover(endpoint_id, since=datetime(2000, 1, 1, tzinfo=UTC), effects=app, **WHO)


def forced_bulk(app: Effects, action: BulkAction, filters: DeadFilters | Filters, *, actor: str) -> int:
    """A bulk action, however few the jobs are."""
    previewed = msgspec.structs.replace(preview(action, filters, effects=app), job_ids=None)
    started = carry_out(previewed, actor=actor, reason="because", effects=app)
    assert isinstance(started, BulkStarted)
    return started.bulk_id


def one_chunk(app: Effects, bulk_id: int) -> Act:
    return ChunkActor(app.store, app.job_types, app.ledgers, bulk_id=bulk_id, job_id=1).act


def prepare_bulk_cancel(app: Effects) -> Act:
    bulk_id = forced_bulk(app, BulkAction("requeue"), DeadFilters(), actor="set-up")
    return lambda: cancel_bulk(bulk_id, effects=app, **WHO)


def prepare_bulk_end(app: Effects) -> Act:
    bulk_id = forced_bulk(app, BulkAction("requeue"), DeadFilters(), actor="set-up")
    run_sql(app, "UPDATE effects_bulk_actions SET actor = 'web:ann'")
    return one_chunk(app, bulk_id)


def prepare_compare(app: Effects) -> Act:
    worker = ManualWorker(app).name
    failover = note_failover(app.store, worker)
    return lambda: report(app.store, worker, failover, Comparison(orphans=1), ids=[worker], **WHO)


def prepare_resolve_failover(app: Effects) -> Act:
    run_sql(app, "INSERT INTO effects_failovers (id, sign, noticed_by) VALUES (7, 'name', 'w')")
    return lambda: resolve_failover(app.store, 7, **WHO)


def link(app: Effects, actor: str = "set-up") -> str:
    options = {"person": "ann", "role": "viewer", "personal": False, "session_seconds": 60.0}
    return sign_ins.mint_link(app.store, **options, actor=actor, reason="because")  # type: ignore[arg-type]


def session(app: Effects) -> str:
    secret = sign_ins.sign_in(app.store, link(app), actor="set-up")
    assert secret is not None
    return secret


def prepare_sign_in(app: Effects) -> Act:
    secret = link(app)
    return lambda: sign_ins.sign_in(app.store, secret, **WHO)


def prepare_sign_out(app: Effects) -> Act:
    secret = session(app)
    return lambda: sign_ins.sign_out(app.store, secret, **WHO)


def prepare_session_end(app: Effects) -> Act:
    session(app)
    [listed] = sign_ins.list_sessions(app.store)
    return lambda: sign_ins.end_session(app.store, listed.id, **WHO)


def looking(action: AuditAction) -> Prepare:
    return lambda app: lambda: note_look(app.store, action, app.keys.digest(ADDRESS), **WHO)


def prepare_grant(app: Effects) -> Act:
    if not app.store.is_postgresql:
        pytest.skip("SQLite has no roles")
    return in_transaction(app, grants.add, ROLE, app.job_types.get("email.compose"))


def prepare_grant_removal(app: Effects) -> Act:
    prepare_grant(app)()
    run_sql(app, "DELETE FROM effects_audit_log")
    return in_transaction(app, grants.remove, ROLE, "email.compose")


def prepare_endpoint_look(app: Effects) -> Act:
    endpoint = add_endpoint("https://partner.test/hook", effects=app, actor="set-up")

    def act() -> None:
        with app.store.begin() as connection:
            note_endpoint(app, connection, REVEAL, endpoint.id, **WHO)

    return act


def prepare_login(app: Effects) -> Act:
    client = OAuthClient(user="u", grant="refresh", token_url="https://t/", device_url="", scope="s", client_id="c")
    return lambda: save_login(app, "default", client, Tokens("access", "refresh", 60), **WHO)


MATRIX: dict[tuple[str, str], Prepare] = {
    ("web_link", "mint"): lambda app: lambda: link(app, WHO["actor"]),
    ("web_session", "sign_in"): prepare_sign_in,
    ("web_session", "sign_out"): prepare_sign_out,
    ("web_session", "end"): prepare_session_end,
    ("address", "look_up"): looking(AuditAction("address", "look_up")),
    ("job", "reveal"): looking(AuditAction("job", "reveal")),
    ("message", "reveal"): looking(AuditAction("message", "reveal")),
    ("messages", "reveal"): looking(AuditAction("messages", "reveal")),
    ("suppressions", "reveal"): looking(AuditAction("suppressions", "reveal")),
    ("event", "reveal"): looking(AuditAction("event", "reveal")),
    ("report", "reveal"): looking(AuditAction("report", "reveal")),
    ("report", "download"): looking(AuditAction("report", "download")),
    ("failover", "compare"): prepare_compare,
    ("failover", "resolve"): prepare_resolve_failover,
    ("job", "cancel"): prepare_cancel,
    ("job", "run_now"): prepare_run_now,
    ("job", "requeue"): prepare_requeue,
    ("job", "reschedule"): prepare_reschedule,
    ("job", "ignore"): prepare_ignore,
    ("job", "mark_done"): lambda app: resolving(app, "mark-done"),
    ("job", "give_up"): lambda app: resolving(app, "give-up"),
    ("worker", "drain"): prepare_drain,
    ("worker", "forget"): prepare_forget,
    ("limit", "set"): lambda app: in_transaction(app, limit_rows.set_limit, "l", max_in_flight=2),
    ("limit", "pause"): lambda app: in_transaction(app, limit_rows.pause, "l", create=True),
    ("limit", "resume"): prepare_limit_resume,
    ("queue", "pause"): lambda app: in_transaction(app, queue_pauses.pause, "q", create=True),
    ("queue", "resume"): prepare_queue_resume,
    ("schedule", "add"): lambda app: lambda: schedules.add(app.store, nightly(), **WHO),
    ("schedule", "pause"): prepare_schedule_pause,
    ("schedule", "resume"): prepare_schedule_resume,
    ("schedule", "run"): prepare_schedule_run,
    ("database", "migrate"): prepare_migrate,
    ("database", "prune"): lambda app: lambda: prune(app, **WHO),
    ("key", "rotate"): lambda app: lambda: rotate(app.store, app.keys, **WHO),
    ("address", "suppress"): lambda app: lambda: suppress(ADDRESS, actor=WHO["actor"], why=WHO["reason"], effects=app),
    ("address", "unsuppress"): prepare_unsuppress,
    ("address", "export"): lambda app: lambda: export_address(ADDRESS, io.BytesIO(), effects=app, **WHO),
    ("address", "forget"): lambda app: lambda: forget_address(ADDRESS, effects=app, **WHO),
    ("endpoint", "add"): lambda app: lambda: add_endpoint("https://partner.test/hook", effects=app, **WHO),
    ("endpoint", "change"): on_endpoint(change_endpoint, patterns=["order.*"]),
    ("endpoint", "disable"): on_endpoint(disable_endpoint),
    ("endpoint", "enable"): on_endpoint(enable_endpoint),
    ("endpoint", "send_test"): on_endpoint(send_test),
    ("secret", "rotate"): on_endpoint(rotate_secret),
    ("secret", "expire"): prepare_expire,
    ("report", "cancel"): prepare_report_cancel,
    ("report", "resume"): prepare_report_resume,
    ("bulk", "start"): lambda app: lambda: forced_bulk(app, BulkAction("requeue"), DeadFilters(), actor=WHO["actor"]),
    ("bulk", "cancel"): prepare_bulk_cancel,
    ("bulk", "end"): prepare_bulk_end,
    ("report", "repair"): prepare_repair,
    ("report", "link"): prepare_link,
    ("bucket", "add"): lambda app: lambda: bucket(app, **WHO),
    ("bucket", "rotate"): prepare_rotate_bucket,
    ("bucket", "remove"): prepare_remove_bucket,
    ("subscription", "add"): lambda app: lambda: subscription(app, **WHO),
    ("subscription", "remove"): on_subscription(unsubscribe),
    ("subscription", "pause"): on_subscription(pause_subscription),
    ("subscription", "resume"): prepare_resume_subscription,
    ("report", "rewind"): prepare_rewind,
    ("grant", "add"): prepare_grant,
    ("grant", "remove"): prepare_grant_removal,
    ("endpoint", "reveal"): prepare_endpoint_look,
    ("transport", "login"): prepare_login,
    ("transport", "test"): lambda app: lambda: send_test_email(app, ADDRESS, **WHO),
}
# Further public functions that take an actor: what they call is an action of the matrix.
BY_FUNCTION: dict[str, tuple[tuple[str, str], Prepare]] = {
    "cancel": (("job", "cancel"), prepare_cancel_by_key),
    "act_on": (("job", "requeue"), prepare_act_on),
    "requeue_email": (("job", "requeue"), prepare_requeue_email),
    "ensure_endpoint": (
        ("endpoint", "add"),
        lambda app: lambda: ensure_endpoint("crm", "https://partner.test/hook", effects=app, **WHO),
    ),
    "replay_delivery": (("job", "requeue"), on_delivery(replay_delivery)),
    "replay_event": (("job", "requeue"), prepare_replay_event),
    "recover": (("job", "requeue"), prepare_recover),
    "cancel_delivery": (("job", "cancel"), on_delivery(cancel_delivery, withdrawn=False)),
    "resume_failed": (("report", "resume"), prepare_resume_failed),
}
# Steps of those that are in the matrix, in a transaction of theirs.
STEPS = {
    "note", "note_all", "note_endpoint", "note_override", "via_of", "record_action", "new_row", "start_bulk", "advance",
    "resume", "retry_effect", "cancel_effect",
}  # fmt: skip
# What is refused when it is repeated.
REFUSED_TWICE = {
    ("job", "cancel"), ("job", "requeue"), ("job", "ignore"), ("job", "mark_done"), ("job", "give_up"),
    ("schedule", "add"), ("schedule", "run"), ("secret", "expire"), ("report", "cancel"), ("report", "resume"),
    ("bulk", "cancel"), ("subscription", "remove"),
}  # fmt: skip


def prepare_bulk(app: Effects, name: ActionName) -> int:
    """A bulk action on two jobs, set up by another person: the entries of its jobs are those of `web:ann`."""
    unknown = name in ("resolve_requeue", "mark_done", "give_up")
    for key in ("a", "b"):
        if name in ("cancel", "run_now"):
            waiting(app)
        else:
            ended(app, Unknown("no reply") if unknown else Refused("no"), "held" if unknown else "scripted", key)
    filters = Filters() if name in ("cancel", "run_now") else DeadFilters()
    bulk_id = forced_bulk(app, BulkAction(name), filters, actor="set-up")
    run_sql(app, "UPDATE effects_bulk_actions SET actor = 'web:ann'")
    return bulk_id


# What the audit log calls the actions of a bulk action on its jobs.
IN_BULK: dict[ActionName, str] = {
    "requeue": "requeue", "ignore": "ignore", "resolve_requeue": "requeue", "mark_done": "mark_done",
    "give_up": "give_up", "cancel": "cancel", "run_now": "run_now",
}  # fmt: skip


def modules(package: ModuleType) -> Iterator[ModuleType]:
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not any(part in module.name for part in ("migrations", "pytest_plugin", "contrib.django.")):
            yield importlib.import_module(module.name)


def declared() -> set[tuple[str, str]]:
    """Every action that a module of the packages has as a constant."""
    return {
        (value.subject_kind, value.name)
        for package in (effects, effects_email, effects_webhooks, effects_reports)
        for module in modules(package)
        for value in vars(module).values()
        if isinstance(value, AuditAction)
    }


def takes_actor() -> set[str]:
    """Every public function and method of the packages that is told who acts; coroutines call the plain ones."""
    functions = {
        function
        for package in (effects, effects_email, effects_webhooks, effects_reports)
        for module in modules(package)
        for holder in (module, *(value for value in vars(module).values() if inspect.isclass(value)))
        for function in vars(holder).values()
        if inspect.isfunction(function) and function.__module__ == module.__name__
    }
    return {
        function.__name__
        for function in functions
        if "actor" in inspect.signature(function).parameters
        and not function.__name__.startswith("_")
        and not inspect.iscoroutinefunction(function)
    }


def entries(app: Effects) -> list[dict[str, Any]]:
    return rows(app, "audit_log", "actor <> 'set-up'")


def test_the_matrix_has_every_action() -> None:
    assert set(MATRIX) == declared()


@pytest.mark.parametrize("action", MATRIX, ids=".".join)
def test_an_action_leaves_one_entry(app: Effects, action: tuple[str, str]) -> None:
    act = MATRIX[action](app)
    act()
    [entry] = entries(app)
    assert (entry["subject_kind"], entry["action"]) == action
    assert (entry["actor"], entry["via"], entry["reason"]) == ("web:ann", "web", "because")
    assert ADDRESS not in str(rows(app, "audit_log"))
    if action in REFUSED_TWICE:
        with pytest.raises(EffectsError):
            act()
        assert len(entries(app)) == 1


def test_every_function_that_takes_an_actor_is_tried() -> None:
    tree = ast.parse(Path(__file__).read_text(encoding="utf-8"))
    tried = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    tried |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    functions = takes_actor()
    assert len(functions) > 35
    assert functions - STEPS - tried == set()
    assert functions >= STEPS | set(BY_FUNCTION)


@pytest.mark.parametrize("name", BY_FUNCTION)
def test_a_function_leaves_one_entry(app: Effects, name: str) -> None:
    action, prepare = BY_FUNCTION[name]
    prepare(app)()
    [entry] = entries(app)
    assert (entry["subject_kind"], entry["action"]) == action
    assert (entry["actor"], entry["via"], entry["reason"]) == ("web:ann", "web", "because")


@pytest.mark.parametrize("name", BY_FUNCTION)
def test_what_a_function_rolls_back_leaves_none(app: Effects, name: str) -> None:
    roll_back(app, BY_FUNCTION[name][1](app))
    assert entries(app) == []


@pytest.mark.parametrize("action", MATRIX, ids=".".join)
def test_what_is_rolled_back_leaves_none(app: Effects, action: tuple[str, str]) -> None:
    act = MATRIX[action](app)
    if action == ("report", "repair"):
        assert_not_repaired(app, act)
    else:
        roll_back(app, act)
    assert entries(app) == []


def assert_not_repaired(app: Effects, act: Act) -> None:
    """One run that cannot be repaired raises nothing: the others have their turn."""
    with refused_commits(app):
        act()


@contextmanager
def refused_commits(app: Effects) -> Iterator[None]:
    def fail(connection: object) -> None:
        raise ZeroDivisionError

    event.listen(app.engine, "commit", fail)
    yield
    event.remove(app.engine, "commit", fail)


def roll_back(app: Effects, act: Act) -> None:
    with refused_commits(app), pytest.raises(ZeroDivisionError):
        act()


def of_jobs(app: Effects) -> list[tuple[str, str, str]]:
    """The entries about single jobs: action, who, why."""
    return [
        (entry["action"], entry["actor"], entry["reason"]) for entry in entries(app) if entry["subject_kind"] == "job"
    ]


@pytest.mark.parametrize("name", IN_BULK)
def test_in_bulk_an_action_leaves_one_entry_for_each_job(app: Effects, name: ActionName) -> None:
    act = one_chunk(app, bulk_id := prepare_bulk(app, name))
    act()
    assert of_jobs(app) == [(IN_BULK[name], "web:ann", "because")] * 2
    assert [entry["action"] for entry in entries(app) if entry["subject_kind"] == "bulk"] == ["end"]
    listed = list_entries(app.store, LogFilters(subject_kind="job"))
    assert [entry.detail["bulk"] for entry in listed] == [bulk_id] * 2
    act()
    assert len(of_jobs(app)) == 2


@pytest.mark.parametrize("name", IN_BULK)
def test_in_bulk_what_is_rolled_back_leaves_none(app: Effects, name: ActionName) -> None:
    act = one_chunk(app, prepare_bulk(app, name))
    crashpoints.install(crashpoints.plan("bulk.before_commit", action="raise"))
    with pytest.raises(crashpoints.CrashPoint):
        act()
    assert entries(app) == []


@pytest.mark.parametrize("name", sorted(set(IN_BULK) - {"run_now"}))
def test_in_bulk_what_is_refused_leaves_none(app: Effects, name: ActionName) -> None:
    """The jobs change between the preview and the chunk; their place in the list is kept."""
    act = one_chunk(app, prepare_bulk(app, name))
    kept = rows(app, "unresolved")
    for number, job_id in enumerate(job["id"] for job in rows(app, "job_history")):
        run_sql(app, f"INSERT INTO effects_job_actions (job_id, action, actor) VALUES ({job_id}, 'ignore', 'set-up')")
        if name == "requeue":
            run_sql(app, f"UPDATE effects_effect_ledger SET job_id = {4711 + number} WHERE job_id = {job_id}")
    if name == "cancel":
        run_sql(app, "DELETE FROM effects_jobs WHERE job_type = 'scripted'")
    act()
    assert of_jobs(app) == []
    assert rows(app, "unresolved") == kept


def test_what_changes_nothing_leaves_none(app: Effects) -> None:
    assert app.create_tables(**WHO) == []
    prune(app, dry_run=True, **WHO)
    prune(app)  # by its schedule
    assert repair_reports(effects=app, **WHO).restarted == 0
    assert entries(app) == []


def test_a_replay_notes_its_tenant(app: Effects) -> None:
    endpoint_id = add_endpoint("https://partner.test/hook", tenant="acme", actor="set-up", effects=app).id
    event_id = send_test(endpoint_id, tenant="acme", actor="set-up", effects=app).event_id
    [delivery] = list_deliveries(tenant="acme", effects=app).deliveries
    cancellation.cancel(app.store, app.ledgers, delivery.job_id, actor="set-up")
    replay_delivery(event_id, endpoint_id, tenant=ANY_TENANT, effects=app, **WHO)
    [entry] = entries(app)
    assert (entry["action"], entry["subject"], entry["tenant"]) == ("requeue", str(delivery.job_id), "acme")
