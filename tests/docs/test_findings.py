"""Each finding of `effects doctor`, provoked on a real database; what its section says to type makes it go."""

from __future__ import annotations

import base64
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, event, text

from effects import Effects, Pause, Refused, Schedule, Unknown, enqueue
from effects.kit.exit_codes import ExitCode
from effects.store.workers import Activity, WorkerIdentity, end, heartbeat, register
from effects.worker import Worker
from effects_webhooks import WebhookEvent, add_endpoint, deliver_webhook, list_endpoints
from tests.support import databases
from tests.support.freezing import freeze_between_transactions
from tests.support.manual_workers import ManualWorker, run_sql
from tests.support.processes import fleet
from tests.support.runbooks import Operator, blocks, sections
from tests.support.running import running
from tests.support.sampling import sample
from tests.support.scripted import AsyncScripted, Scripted
from tests.support.server_pair import ServerPair, server_pair
from tests.support.waiting import wait_until

YEARS = 3 * 365 * 86_400.0
KEY, NEWER, DIGEST = (base64.b64encode(bytes([number]) * 32).decode() for number in (1, 2, 3))
SECTIONS = sections("findings.md")
# What cannot be typed here: where it is provoked and mended instead.
ELSEWHERE = {
    "database": "no finding but a fact: tests/cli/test_main.py reads it",
    "packages": "needs a package that cannot read its rows: tests/web/test_held_up.py has one",
    "set aside": "needs a message that ends its reader: tests/email/returned/test_bounces_command.py sends it",
    "bounces": "needs a mail server: tests/email/returned/test_bounces_command.py types it",
    "installation": "needs an environment of its own: tests/install/test_wheel.py types it",
    "clock": "needs a process of its own with a wrong clock: test_wrong_clock.py types it",
}

Provoke = Callable[[Operator], object]


# -- provocations ----------------------------------------------------------------------------------------


def settled(operator: Operator, outcome: Any, **options: Any) -> int:
    app = operator.app()
    receipt = enqueue("scripted", {}, effects=app, **options)
    worker = ManualWorker(app)
    worker.settle((worker.claim_one(), outcome))
    run_sql(app, "DELETE FROM effects_workers")
    return receipt.job_id


def due(operator: Operator) -> None:
    enqueue("scripted", {}, effects=operator.app())
    operator.clock_seconds = 1000


def ahead(operator: Operator) -> None:
    operator.clock_seconds = YEARS
    enqueue("scripted", {}, effects=operator.app())
    operator.clock_seconds = 0


def without_durability(operator: Operator) -> None:
    operator.engine = create_engine(operator.driver_url)
    event.listen(operator.engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous=NORMAL"))


def lost_commits(operator: Operator) -> None:
    columns = "id, sign, workers, compared, orphans, incomplete, noticed_by"
    app = operator.app()
    for values in ("1, 'first', 2, 0, 0, 0, 'w'", "2, 'name', 2, 2, 1, 0, 'w'", "3, 'name', 1, 1, 0, 0, 'w'"):
        run_sql(app, f"INSERT INTO effects_failovers ({columns}) VALUES ({values})")
    operator.words["ID"] = 2


def old_snapshot(operator: Operator) -> None:
    holder = create_engine(operator.driver_url, isolation_level="REPEATABLE READ")
    connection = holder.connect()
    operator.words["PID"] = connection.execute(text("SELECT pg_backend_pid()")).scalar()
    connection.execute(text("SELECT count(*) FROM effects_jobs"))
    operator.stack.callback(connection.invalidate)


def open_to_others(operator: Operator) -> None:
    operator.app()
    for path in operator.folder.glob("effects.db*"):
        path.chmod(0o644)
    operator.words["FILES"] = str(operator.findings("file modes")[0].advice).partition("chmod 600 ")[2].rstrip("`")


def own_engine(**connect_args: Any) -> Provoke:
    def provoke(operator: Operator) -> None:
        operator.engine = create_engine(operator.driver_url, connect_args=connect_args)

    return provoke


def other_journal(operator: Operator) -> None:
    own_engine()(operator)
    operator.type("sql", "PRAGMA journal_mode=DELETE;")


def drop_table(operator: Operator) -> None:
    backup = operator.folder / "backup"
    if operator.is_postgresql:
        operator.type("sh", f"pg_dump --format custom --file {backup} --dbname '{operator.url}'")
    else:
        shutil.copy(operator.database_path, backup)
    operator.words |= {"BACKUP": backup, "TABLE": "effects_job_actions", "FILE": operator.database_path}
    operator.words["URL"] = f"'{operator.url}'"
    run_sql(operator.app(), "DROP TABLE effects_job_actions")


def drop_index(operator: Operator) -> None:
    run_sql(operator.app(), "DROP INDEX ux_effects_jobs_group_running")
    operator.words["STATEMENT"] = operator.findings("indexes")[0].advice


def invalid_index(operator: Operator) -> None:
    run_sql(
        operator.app(),
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'ix_effects_jobs_ready'::regclass",
    )
    operator.words["STATEMENT"] = operator.findings("indexes")[0].advice


def bloat(operator: Operator) -> None:
    app = operator.app()
    operator.words["TABLE"] = "effects_jobs"
    if not operator.is_postgresql:
        run_sql(app, "CREATE TABLE filler AS SELECT zeroblob(5000000) AS b")
        run_sql(app, "DROP TABLE filler")
        return
    for _ in range(10):
        enqueue("scripted", {}, effects=app)
    run_sql(app, "DELETE FROM effects_jobs")
    app.engine.dispose()  # a session reports its statistics when it ends, if not before


def silent(operator: Operator) -> None:
    app = operator.app()
    ManualWorker(app)
    operator.clock_seconds = 1000


def idle(operator: Operator) -> None:
    """A process that stands in for one whose threads stand still while its heartbeat goes on."""
    process = operator.stack.enter_context(subprocess.Popen(["sleep", "1000"]))
    operator.stack.callback(process.kill)
    app = operator.app()
    register(app.store, WorkerIdentity("stuck", "host", process.pid, "0", "default", 10.0, 120.0))
    heartbeat(app.store, "stuck", Activity(500.0, 500.0, 500.0, 0.0))
    operator.words["PID"] = process.pid


def ended_by_faults(operator: Operator) -> None:
    app = operator.app()
    for name in ("w1", "w2"):
        end(app.store, ManualWorker(app, name).name, ExitCode.PART_FAILED, "settler stalled")
    operator.words["ID"] = "w1"


def stopped(operator: Operator) -> None:
    workers = operator.stack.enter_context(fleet(operator.url, operator.folder))
    worker = workers.worker(EFFECTS_LEASE_SECONDS="60", EFFECTS_HEARTBEAT_SECONDS="0.3")
    operator.settings["EFFECTS_LEASE_SECONDS"] = "60"
    wait_until(lambda: operator.command("workers", "list", "--json").json)
    freeze_between_transactions(worker, operator.app())
    operator.words["PID"] = worker.pid


def other_lease(operator: Operator) -> None:
    """The shell that asks has a third one, which is none of a worker's."""
    ManualWorker(operator.app())
    operator.settings["EFFECTS_LEASE_SECONDS"] = "60"
    assert not operator.findings("leases")
    worker = Worker(operator.app(lease_seconds=30, heartbeat_seconds=0.2))
    operator.stack.enter_context(running(worker))
    wait_until(lambda: len(operator.command("workers", "list", "--json").json) == 2)
    [state] = [state for state in operator.command("workers", "list", "--json").json if state["lease_seconds"] == 30]
    operator.words |= {"ID": state["id"], "SECONDS": 120}


def failing(operator: Operator) -> None:
    app = sealed(operator)
    operator.settings["EFFECTS_KEYS"] = f"k={KEY},digest={DIGEST}"
    [endpoint] = list_endpoints(effects=app)
    columns = "endpoint_id, failing_since, failed_messages"
    run_sql(app, f"INSERT INTO effects_webhook_health ({columns}) VALUES ('{endpoint.id}', {app.store.sql.now}, 3)")
    operator.words["EP"] = endpoint.id


def paused_queue(operator: Operator) -> None:
    enqueue("scripted", {}, effects=operator.app())
    operator.command("queues", "pause", "default")
    operator.words["QUEUE"] = "default"


def unserved(operator: Operator) -> None:
    run_sql(operator.app(), "INSERT INTO effects_jobs (job_type, queue) VALUES ('scripted', 'media')")
    operator.words["QUEUE"] = "media"


def paused_key(operator: Operator) -> None:
    settled(operator, Pause(9000, "down"), limit_key="partner")
    operator.words["KEY"] = "partner"


def put_off(operator: Operator) -> None:
    settled(operator, Pause(9000, "no relaying", code="smtp_550"))
    operator.words["NAME"] = "scripted"


def blocked(operator: Operator) -> None:
    enqueue("scripted", {}, group_key="orders", effects=operator.app())
    run_sql(operator.app(), "UPDATE effects_job_groups SET blocked = true")
    operator.words["GROUP"] = "orders"


def unregistered(operator: Operator) -> None:
    run_sql(operator.app(), "INSERT INTO effects_jobs (job_type) VALUES ('gone'), ('gone')")
    operator.words["NAME"] = "gone"


def sealed(operator: Operator, keys: str = f"k={KEY},digest={DIGEST}") -> Effects:
    app = operator.app(keys=keys, allow_private_addresses=True)
    add_endpoint("http://127.0.0.1:9/", effects=app)
    return app


def without_its_key(operator: Operator) -> None:
    app = sealed(operator)
    deliver_webhook(WebhookEvent("order.paid", {"order": 1}), effects=app)
    operator.options["allow_private_addresses"] = True
    Worker(operator.app(keys=f"new={NEWER},digest={DIGEST}")).drain(1)
    operator.words |= {"KEYS": f"new={NEWER},k={KEY},digest={DIGEST}", "NAME": "webhook.deliver"}


def not_registered(operator: Operator) -> None:
    operator.options["schedules"] = [Schedule("nightly", "scripted", cron="0 3 * * *")]


def old_key(operator: Operator) -> None:
    sealed(operator)
    operator.settings["EFFECTS_KEYS"] = f"new={NEWER},k={KEY},digest={DIGEST}"


def missing_key(operator: Operator) -> None:
    app = sealed(operator)
    run_sql(app, "DELETE FROM effects_jobs")
    operator.settings["EFFECTS_KEYS"] = f"new={NEWER},digest={DIGEST}"
    operator.words |= {"NEWEST": f"new={NEWER}", "MISSING": f"k={KEY},digest={DIGEST}"}


def file_for_a_folder(operator: Operator) -> None:
    (operator.folder / "files").write_text("in the way")
    operator.settings["EFFECTS_STORAGE_URL"] = str(operator.folder / "files")
    operator.words["FOLDER"] = operator.folder / "new"


def password_of_an_ending_host(operator: Operator) -> None:
    host = "shop:secret@smtp.office365.com:587"
    operator.settings |= {"EFFECTS_SMTP_URL": f"smtp+starttls://{host}", "EFFECTS_KEYS": f"k={KEY},digest={DIGEST}"}
    operator.words["URL"] = f"smtp+starttls+oauth://{host}?provider=microsoft&client_id=app&grant=client"


def too_many_in_flight(operator: Operator) -> None:
    operator.options["job_types"] = [AsyncScripted()]
    operator.settings["EFFECTS_IN_FLIGHT"] = str(2**30)
    operator.words["NUMBER"] = 100


def setting(name: str, value: str) -> Provoke:
    return lambda operator: operator.settings.update({name: value})


def died(operator: Operator) -> None:
    settled(operator, Refused("no"))
    operator.words["NAME"] = "scripted"


def held(operator: Operator) -> None:
    operator.words["ID"] = settled(operator, Unknown("no reply"), on_unknown="hold")


BOTH, SQLITE, POSTGRESQL = ("sqlite", "postgresql"), ("sqlite",), ("postgresql",)
# Check, which of its section's blocks are typed, databases, and what provokes it.
CASES: list[tuple[str, tuple[int, ...], tuple[str, ...], Provoke]] = [
    ("times ahead", (0,), BOTH, ahead),
    ("durability", (1,), SQLITE, without_durability),
    ("lost commits", (0,), BOTH, lost_commits),
    ("snapshot", (0,), POSTGRESQL, old_snapshot),
    ("pooler", (0,), POSTGRESQL, own_engine()),
    ("file modes", (0,), SQLITE, open_to_others),
    ("journal", (0,), SQLITE, other_journal),
    ("busy timeout", (0,), SQLITE, own_engine(timeout=0.1)),
    ("tables", (0, 1), BOTH, drop_table),
    ("indexes", (0,), BOTH, drop_index),
    ("indexes", (0,), POSTGRESQL, invalid_index),
    ("vacuum", (0, 1), BOTH, bloat),
    ("workers", (0,), BOTH, due),
    ("workers", (0,), BOTH, silent),
    ("workers", (1, 0), BOTH, idle),
    ("failed workers", (0,), BOTH, ended_by_faults),
    ("heartbeats", (0,), BOTH, stopped),
    ("leases", (0,), BOTH, other_lease),
    ("backlog", (0,), BOTH, due),
    ("dead letters", (0,), BOTH, died),
    ("dead letters", (1,), BOTH, held),
    ("endpoints", (0,), BOTH, failing),
    ("queues", (0,), BOTH, paused_queue),
    ("queues", (1,), BOTH, unserved),
    ("limit keys", (0,), BOTH, paused_key),
    ("put off", (0,), BOTH, put_off),
    ("groups", (0,), BOTH, blocked),
    ("job types", (0,), BOTH, unregistered),
    ("worker settings", (0,), BOTH, without_its_key),
    ("schedules", (0,), BOTH, not_registered),
    ("keys", (0,), BOTH, old_key),
    ("keys", (1,), BOTH, missing_key),
    ("keys", (2,), BOTH, lambda operator: None),
    ("keys", (2,), BOTH, setting("EFFECTS_KEYS", f"k={KEY}")),
    ("mail logins", (0,), BOTH, password_of_an_ending_host),
    ("storage", (0,), BOTH, file_for_a_folder),
    ("open files", (0,), BOTH, too_many_in_flight),
    ("settings", (0,), BOTH, setting("EFFECTS_LOG_LEVEL", "DEBUG")),
]
MATRIX = [(*case, database) for case in CASES for database in case[2]]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def mended(operator: Operator, check: str, numbers: tuple[int, ...]) -> None:
    """The finding is there; what its section has to type makes it go."""
    wait_until(lambda: operator.findings(check))
    if "URL" not in operator.words:
        operator.words["URL"] = operator.driver_url
    for number in numbers:
        operator.type(*blocks(SECTIONS[check])[number])
    wait_until(lambda: not operator.findings(check))


@pytest.mark.parametrize(
    ("check", "numbers", "_databases", "provoke", "database_url"), sample(MATRIX, 20), indirect=["database_url"],
    ids=lambda value: value.replace(" ", "_") if isinstance(value, str) else "",
)  # fmt: skip
def test_what_a_section_says_to_type_mends_its_finding(
    check: str, numbers: tuple[int, ...], _databases: Any, provoke: Provoke, database_url: str, tmp_path: Path,
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("effects.operate.tables.server_checks.SNAPSHOT_WARNING_SECONDS", 0.0)
    monkeypatch.setattr("effects.operate.tables.database_checks.DEAD_TUPLES_MIN", 5)
    monkeypatch.setattr("effects.operate.tables.database_checks.FREE_PAGES_MIN_BYTES", 1)
    operator = Operator(database_url, tmp_path, stack, {}, options={"job_types": [Scripted()]})
    provoke(operator)
    mended(operator, check, numbers)


def test_tables_of_another_version_are_mended(empty_database_url: str, tmp_path: Path, stack: ExitStack) -> None:
    operator = Operator(empty_database_url, tmp_path, stack, {})
    if not operator.is_postgresql:
        operator.database_path.touch(0o600)
    mended(operator, "schema", (0,))


@pytest.mark.parametrize("seconds", [600, -600])
def test_clocks_that_differ_are_found_until_they_agree(
    database_url: str, tmp_path: Path, stack: ExitStack, seconds: int
) -> None:
    operator = Operator(database_url, tmp_path, stack, {}, clock_seconds=seconds)
    assert operator.findings("clock")
    operator.clock_seconds = 0
    assert not operator.findings("clock")


# -- what only a server of its own shows -----------------------------------------------------------------


@pytest.fixture(scope="module")
def pair() -> Iterator[ServerPair]:
    with server_pair() as servers:
        databases.migrated(servers.url)
        yield servers


def on_standby(operator: Operator, pair: ServerPair) -> None:
    operator.settings["EFFECTS_DATABASE_URL"] = pair.standby.url
    operator.words["PRIMARY"] = pair.primary.url


def any_host(operator: Operator, pair: ServerPair) -> None:
    operator.words["URL"] = pair.options_url.replace("postgresql:", "postgresql+psycopg:")
    operator.engine = create_engine(str(operator.words["URL"]))


def not_durable(operator: Operator, pair: ServerPair) -> None:
    pair.primary.configure(synchronous_commit="off")


def not_synchronous(operator: Operator, pair: ServerPair) -> None:
    pair.primary.configure(synchronous_standby_names="")


def no_autovacuum(operator: Operator, pair: ServerPair) -> None:
    pair.primary.configure(autovacuum="off")
    operator.words["TABLE"] = "effects_jobs"


@pytest.mark.parametrize(
    ("check", "provoke"),
    [
        ("server", on_standby), ("hosts", any_host), ("timeouts", lambda operator, pair: own_engine()(operator)),
        ("durability", not_durable), ("failover", not_synchronous), ("vacuum", no_autovacuum),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_a_section_says_to_type_mends_a_server(
    check: str, provoke: Callable[[Operator, ServerPair], object], pair: ServerPair, tmp_path: Path, stack: ExitStack
) -> None:
    operator = Operator(pair.primary.url, tmp_path, stack, {}, options={"job_types": [Scripted()]})
    provoke(operator, pair)
    mended(operator, check, (0,))


# -- all of them -----------------------------------------------------------------------------------------


def test_each_block_of_each_section_is_typed() -> None:
    typed = {(check, number) for check, numbers, _, _ in CASES for number in numbers}
    typed |= {(check, 0) for check in ("schema", "server", "hosts", "timeouts", "durability", "failover")}
    written = {(check, number) for check, section in SECTIONS.items() for number in range(len(blocks(section)))}
    assert written - typed == {(check, 0) for check in ELSEWHERE}
    assert {check for check, _ in written} == set(SECTIONS)
