"""`effects doctor`: is everything as it should be, and what to do where it is not.

Also what an app declares to run later, checked before it does: the jobs of its schedules and alerts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from effects.app.effects import Effects
from effects.errors import ConfigurationError, DeliveryError, EnqueueError, SchemaMismatch
from effects.keys.encryption import KeyRing
from effects.kit import process
from effects.kit.text.wording import moment_text
from effects.model.advice import DoctorFinding, Level
from effects.model.job_type import Routing
from effects.model.schedules import Schedule
from effects.operate.tables.database_checks import examine_tables, examine_work
from effects.operate.tables.failovers import list_failovers
from effects.operate.tables.rotate import KeyCount, count_keys
from effects.operate.tables.server_checks import examine_failover, examine_server, examine_waits
from effects.settings import DEFAULT_STORAGE_URL
from effects.store import schedules as schedule_definitions
from effects.store.db import revisions
from effects.store.db.clock import count_ahead
from effects.store.schedules import active
from effects_toolkit.files import MENDED_BY, foreign_distribution


def check_all_declared(app: Effects, connection: Connection | None = None) -> None:
    """Refuse the first schedule or alert of the app whose job would be refused when it runs.

    Args:
        connection: to look at what the database has for them, too.

    Raises:
        ConfigurationError: names it, what is wrong, and where.
    """
    for error in refused(app, app.schedules.values(), connection):
        raise error


def refused(app: Effects, schedules: Iterable[Schedule], connection: Connection | None) -> Iterator[ConfigurationError]:
    """Why the jobs of these schedules, of the app's alerts, and those that a setting names would be refused."""
    jobs: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for alert in app.alerts:
        jobs[f"alert {alert.name!r}"] = alert.notify, alert.payload_of("subject", 1.0)
    for job_type in app.job_types:
        jobs |= job_type.declared_jobs()
    job_types, alerts = app.job_types, app.alerts
    checks: list[tuple[str, Callable[[], Routing]]] = [
        *((f"schedule {each.name!r}", partial(job_types.check_declared, each, connection)) for each in schedules),
        *((who, partial(job_types.check_job, who, name, payload, connection)) for who, (name, payload) in jobs.items()),
        *((f"alert {each.name!r}", partial(Routing, getattr(each.rule, "queue", None))) for each in alerts),
    ]
    for who, check in checks:
        try:
            _check_queue(app, connection, who, check().queue)
        except ConfigurationError as error:
            yield error


def _check_queue(app: Effects, connection: Connection | None, who: str, queue: str | None) -> None:
    """Refuse a queue that no one serves, once the database can say which workers there are."""
    try:
        if connection is not None and queue is not None:
            app.known_queues.check(connection, [queue])
    except EnqueueError as error:
        raise ConfigurationError(f"{who}: {error}") from None


_EXIT: dict[Level, int] = {"ok": 0, "warning": 1, "error": 2}


def examine(app: Effects) -> list[DoctorFinding]:
    """Run every check; if the tables are not ours, only the checks that need no tables.

    Reads statistics and catalogues, and once the tables with sealed values, jobs that succeeded left out.

    Raises:
        StoreUnavailable: the database is unavailable.
    """
    return list(_findings(app))


def exit_code(findings: list[DoctorFinding]) -> int:
    """Return 0 without problems, 1 for a warning, 2 for an error."""
    return max((_EXIT[finding.level] for finding in findings), default=0)


def _findings(app: Effects) -> Iterator[DoctorFinding]:
    yield from _installation()
    yield DoctorFinding("database", "ok", str(app.database))
    has_tables = True
    try:
        yield _schema(revisions.check(app.store))
    except SchemaMismatch as error:
        has_tables = False
        text, _, advice = str(error).partition(": ")
        yield DoctorFinding("schema", "error", text, advice)
    yield from examine_server(app.store)
    yield from examine_waits(app.store)
    yield from examine_failover(app.store)
    if has_tables:
        yield from examine_tables(app.store)
        yield from examine_work(app.store, app.settings.lease_seconds, app.job_types, app.queues)
        yield from _lost_commits(app)
        yield from _clock(app)
        yield _schedules(app)
        yield from _refused_schedules(app)
        yield from _keys(app.keys, count_keys(app.store, quick=True))
        for job_type in app.job_types:
            yield from job_type.examine()
    yield _storage(app)
    yield _open_files(app)
    yield from _settings(app)


def _schema(newer: list[str]) -> DoctorFinding:
    if not newer:
        return DoctorFinding("schema", "ok", "schema is up to date")
    return DoctorFinding(
        "schema",
        "warning",
        f"the tables are newer than this version, which works with them ({', '.join(newer)})",
        "upgrade the package on this host; a later migration may require it",
    )


def _installation() -> Iterator[DoctorFinding]:
    """Another project's files in our folder: whichever was installed last has overwritten the other."""
    if (foreign := foreign_distribution()) is not None:
        text = f"the distribution {foreign} is another project, and writes into the same folder"
        yield DoctorFinding("installation", "error", text, MENDED_BY)


def _lost_commits(app: Effects) -> Iterator[DoctorFinding]:
    """What failovers lost, as far as workers remember it."""
    with app.store.read() as connection:
        failovers = list_failovers(app.store, connection)
    for failover in failovers:
        if failover.is_open:
            forgot = f", {failover.incomplete} of them without a part" if failover.incomplete else ""
            yield DoctorFinding(
                "lost commits",
                "warning",
                f"failover {failover.id} ({moment_text(failover.noticed_at)}): {failover.orphans:,} effects of lost "
                f"jobs, {failover.recorded:,} outcomes written back, {failover.unknowns:,} unknown; "
                f"{failover.compared} of {failover.workers} workers compared what they remember{forgot}",
                f"see `effects failovers orphans`, then `effects failovers resolve {failover.id}` (docs/failover.md)",
            )
    if not any(failover.is_open for failover in failovers):
        newest = f"; the last failover was at {moment_text(failovers[0].noticed_at)}" if failovers else ""
        yield DoctorFinding("lost commits", "ok", f"no failover has lost what workers remember{newest}")


def _clock(app: Effects) -> Iterator[DoctorFinding]:
    """What waits for years because the database's clock was ahead for a moment."""
    ahead = count_ahead(app.store)
    if ahead:
        counts = f"{ahead.jobs:,} waiting jobs, {ahead.limits:,} limit keys, {ahead.workers:,} workers"
        yield DoctorFinding(
            "times ahead", "warning", f"the database's clock was ahead when these were last written: {counts}",
            "mended every minute by a worker that stays, and by `effects prune`; then look for the clock's cause",
        )  # fmt: skip


def _schedules(app: Effects) -> DoctorFinding:
    """What a deploy that does not register them leaves behind."""
    pending = schedule_definitions.not_registered(app.store, list(app.schedules.values()))
    if not pending:
        return DoctorFinding("schedules", "ok", "schedules match the code")
    return DoctorFinding(
        "schedules",
        "warning",
        f"schedules missing or different from the code: {', '.join(sorted(pending))}",
        f"run `{app.store.init_command()}` with this code on every deploy; until then these schedules do not run as "
        "declared",
    )


def _refused_schedules(app: Effects) -> Iterator[DoctorFinding]:
    """Those whose next job, or what follows from it, would be refused; alerts too."""
    with app.store.read() as connection:
        stored = active(app.store, connection, app.job_types.names()).definitions
        schedules = {**{definition.schedule.name: definition.schedule for definition in stored}, **app.schedules}
        for error in refused(app, [schedule for _, schedule in sorted(schedules.items())], connection):
            advice = (
                "mend its payload (see `effects schedules list`), or what it names: its job ends dead, or one after it"
            )
            yield DoctorFinding("schedules", "error", str(error), advice)


def _storage(app: Effects) -> DoctorFinding:
    """Used to find out, unless nothing was ever kept in the folder of the default."""
    url = app.settings.storage_url
    if url == DEFAULT_STORAGE_URL and not Path(url.removeprefix("file:")).exists():
        return DoctorFinding("storage", "ok", "no files stored yet")
    try:
        app.storage.check()
    except (ConfigurationError, DeliveryError) as error:
        return DoctorFinding("storage", "error", str(error), "jobs that store files fail: see EFFECTS_STORAGE_URL")
    return DoctorFinding("storage", "ok", f"files can be written, read and deleted: {app.storage.url}")


def _open_files(app: Effects) -> DoctorFinding:
    """As this process finds it: a worker may be started otherwise."""
    in_flight = sum(_most_in_flight(app, queue) for queue in app.job_types.async_queues())
    needed, most = in_flight + process.FILES_BESIDES, process.open_files_max()
    if needed <= most:
        return DoctorFinding("open files", "ok", f"{in_flight:,} attempts in flight on the event loop have room")
    return DoctorFinding(
        "open files",
        "warning",
        f"at most {most:,} files and sockets may be open; {in_flight:,} attempts in flight may need {needed:,}",
        "raise the hard limit (`ulimit -Hn`, LimitNOFILE= of systemd), or lower EFFECTS_IN_FLIGHT",
    )


def _most_in_flight(app: Effects, queue: str) -> int:
    """With those that are begun in the place of silent ones."""
    shares = [job_type.reserved_share for job_type in app.job_types if job_type.queue == queue]
    slots = app.settings.queue_threads().get(queue, app.settings.in_flight)
    return slots + math.ceil(slots * max(shares, default=0.0))


def _keys(ring: KeyRing, counts: list[KeyCount]) -> Iterator[DoctorFinding]:
    by_key: dict[str, int] = {}
    for count in counts:
        by_key[count.key_id] = by_key.get(count.key_id, 0) + count.values
    missing = [f"{key_id} ({count:,})" for key_id, count in sorted(by_key.items()) if key_id not in ring.ids]
    old = [f"{key_id} ({by_key[key_id]:,})" for key_id in ring.ids[1:] if key_id in by_key]
    if missing:
        yield DoctorFinding(
            "keys",
            "error",
            f"values are encrypted with keys that are not in EFFECTS_KEYS: {', '.join(missing)}",
            "add those keys back after the newest; without them the values are lost",
        )
    if old:
        yield DoctorFinding(
            "keys", "warning", f"values are encrypted with old keys: {', '.join(old)}", "run `effects keys rotate`"
        )
    if not ring.ids:
        yield DoctorFinding(
            "keys",
            "warning",
            "EFFECTS_KEYS is not set: no secret and no sensitive field can be stored",
            "run `effects keys generate` and set what it prints",
        )
    elif not ring.digests_are_keyed:
        yield DoctorFinding(
            "keys",
            "warning",
            "EFFECTS_KEYS has no key named digest: payload digests can be guessed",
            "add digest=… of 32 random bytes in base64, and never change it",
        )
    elif not missing and not old:
        yield DoctorFinding("keys", "ok", f"all values are encrypted with the newest key, {ring.ids[0]}")


def _settings(app: Effects) -> Iterator[DoctorFinding]:
    risks = {risk: advice for settings in app.packages.values() for risk, advice in settings.risks().items()}
    if app.settings.log_level == "DEBUG":
        risks["EFFECTS_LOG_LEVEL is DEBUG"] = "INFO is enough, and a tenth of the volume"
    for risk, advice in risks.items():
        yield DoctorFinding("settings", "warning", risk, advice)
    if not risks:
        yield DoctorFinding("settings", "ok", "no problem found in the settings")
