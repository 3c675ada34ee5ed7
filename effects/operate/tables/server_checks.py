"""Checks of `effects doctor` for the server: clock, durability, snapshots, pooler, file modes, timeouts, standbys."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Row, text

from effects.model.advice import DoctorFinding, Level
from effects.store.db.engine import CONNECTION_TIMEOUTS, pooler_between, wide_files
from effects.store.db.store import Store
from effects.store.db.urls import hosts_of

SNAPSHOT_WARNING_SECONDS, SNAPSHOT_ERROR_SECONDS = 300.0, 3_600.0
CLOCK_WARNING_SECONDS, CLOCK_ERROR_SECONDS = 1.0, 120.0
BUSY_MS_MIN = 1_000
_NEEDED = ("connect_timeout", "keepalives_idle", "tcp_user_timeout")


def examine_server(store: Store) -> Iterator[DoctorFinding]:
    """Clock, durability, oldest snapshot, pooler; the file's modes on SQLite."""
    with store.read() as connection:
        yield _clock(store, connection)
        yield from _postgresql(connection) if store.is_postgresql else _sqlite(connection)
    if store.is_postgresql:
        with store.begin() as connection:  # of the engine that an app may have made itself
            yield _pooler(connection)


def examine_waits(store: Store) -> Iterator[DoctorFinding]:
    """Over TCP; a local socket does not need them."""
    if not store.is_postgresql:
        return
    with store.read() as connection:
        driver: Any = connection.connection.driver_connection
        info = getattr(driver, "info", None)
        parameters = getattr(info, "get_parameters", lambda: getattr(info, "dsn_parameters", {}))()
    if str(parameters.get("host", "/")).startswith("/"):
        return
    missing = [name for name in _NEEDED if name not in parameters]
    if missing:
        advised = ", ".join(f"{name}={value}" for name, value in CONNECTION_TIMEOUTS.items())
        yield DoctorFinding(
            "timeouts",
            "warning",
            f"this engine's connections lack {', '.join(missing)}: a dead host is noticed after some 15 minutes",
            f"give connect_args of {advised}, or let effects make the engine",
        )
    else:
        yield DoctorFinding("timeouts", "ok", "a host that is gone is noticed within seconds")


def examine_failover(store: Store) -> Iterator[DoctorFinding]:
    """What a failover of this server would lose; nothing on SQLite, or on a standby."""
    if not store.is_postgresql:
        return
    with store.read() as connection:
        yield from _about_hosts(store, connection)
        if not connection.exec_driver_sql("SELECT pg_is_in_recovery()").scalar():
            yield _about_standbys(connection)


# -- server ----------------------------------------------------------------------------------------------


def _clock(store: Store, connection: Connection) -> DoctorFinding:
    store.now(connection)  # the first statement may build the connection
    before = time.time()
    there = store.now(connection)
    answered = time.time()
    apart = there - (before + answered) / 2
    shown = f"this host's clock is {abs(apart):.1f} s {'behind' if apart > 0 else 'ahead of'} the database's"
    if abs(apart) - (answered - before) / 2 <= CLOCK_WARNING_SECONDS:
        return DoctorFinding("clock", "ok", "this host and the database agree on the time")
    level: Level = "error" if abs(apart) > CLOCK_ERROR_SECONDS else "warning"
    return DoctorFinding(
        "clock",
        level,
        shown,
        "set up NTP on both. The queue goes by the database's clock, but signatures carry this host's, and receivers "
        "refuse those that are 5 minutes off",
    )


def _postgresql(connection: Connection) -> Iterator[DoctorFinding]:
    if connection.exec_driver_sql("SELECT pg_is_in_recovery()").scalar():
        yield DoctorFinding("server", "error", "this server is a read-only replica", "give the primary's address")
    risky = [
        name
        for name in ("fsync", "full_page_writes", "synchronous_commit")
        if connection.exec_driver_sql(f"SHOW {name}").scalar() == "off"
    ]
    if risky:
        yield DoctorFinding(
            "durability",
            "warning",
            f"{', '.join(risky)} off: a power cut may lose what was acknowledged",
            "turn it on, for this database at least",
        )
    else:
        yield DoctorFinding("durability", "ok", "an acknowledged commit survives a power cut of this server")
    yield _snapshot(connection)


_SNAPSHOTS = """
    SELECT 'connection ' || pid || ' (' || concat_ws(', ', usename, nullif(application_name, ''), state) || ')' AS who,
        date_part('epoch', clock_timestamp() - xact_start) AS seconds,
        'SELECT pg_terminate_backend(' || pid || ')' AS cure
    FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND xact_start IS NOT NULL
    AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)  -- the latter holds rows
    AND (datname = current_database() OR datid IS NULL)  -- those of other databases hold nothing back here
    UNION ALL
    SELECT 'prepared transaction ' || gid, date_part('epoch', clock_timestamp() - prepared),
        'ROLLBACK PREPARED ' || quote_literal(gid) FROM pg_prepared_xacts WHERE database = current_database()
    ORDER BY seconds DESC, who LIMIT 1"""


def _snapshot(connection: Connection) -> DoctorFinding:
    """The oldest transaction keeps dead rows from being removed, and the claim reads through them; it may lock some."""
    oldest = connection.execute(text(_SNAPSHOTS)).first()
    seconds = float(oldest.seconds) if oldest is not None else 0.0
    if oldest is None or seconds < SNAPSHOT_WARNING_SECONDS:
        return DoctorFinding("snapshot", "ok", "no long-running transaction")
    level: Level = "error" if seconds > SNAPSHOT_ERROR_SECONDS else "warning"
    return DoctorFinding(
        "snapshot",
        level,
        f"{oldest.who} has had a transaction open for {seconds:,.0f} s",
        f"end that transaction ({oldest.cure};) and look why it is open: until then no dead row can be removed and "
        "what it has locked waits",
    )


def _pooler(connection: Connection) -> DoctorFinding:
    driver: Any = connection.connection.driver_connection
    prepares = getattr(driver, "prepare_threshold", None) is not None
    between = pooler_between(driver)
    if prepares and between:
        return DoctorFinding(
            "pooler",
            "error",
            "behind a pooler, with prepared statements on: they fail if it pools transactions",
            "make the engine with connect_args={'prepare_threshold': None}",
        )
    if prepares:
        return DoctorFinding(
            "pooler",
            "warning",
            "prepared statements are on: they fail behind a transaction pooler",
            "make the engine with connect_args={'prepare_threshold': None}, or use no such pooler",
        )
    if between:
        return DoctorFinding("pooler", "ok", "behind a pooler: notifications do not pass it, polling finds the jobs")
    return DoctorFinding("pooler", "ok", "no pooler is in between; a transaction pooler may be used")


def _modes(connection: Connection) -> Iterator[DoctorFinding]:
    """Addresses, mail and payloads are in these files, in clear where no keys are set."""
    name = connection.exec_driver_sql("SELECT file FROM pragma_database_list WHERE name = 'main'").scalar()
    if not name:
        return
    wide = wide_files(Path(name))
    if wide:
        modes = ", ".join(f"{file.name} {mode:04o}" for file, mode in wide.items())
        files = " ".join(shlex.quote(str(file)) for file in wide)
        yield DoctorFinding(
            "file modes", "warning", f"others on this host may open {modes}", f"run `chmod 600 {files}`"
        )
    else:
        yield DoctorFinding("file modes", "ok", "its owner alone may open the database's files")


def _sqlite(connection: Connection) -> Iterator[DoctorFinding]:
    yield from _modes(connection)
    mode = str(connection.exec_driver_sql("PRAGMA journal_mode").scalar()).lower()
    if mode == "wal":
        yield DoctorFinding("journal", "ok", "write-ahead log: readers and the writer do not wait for each other")
    else:
        yield DoctorFinding(
            "journal",
            "warning",
            f"journal_mode is {mode}: every reader stops the writer",
            "PRAGMA journal_mode=WAL; a network file system cannot have it, and is no place for this file",
        )
    if int(connection.exec_driver_sql("PRAGMA synchronous").scalar() or 0) >= 2:
        yield DoctorFinding("durability", "ok", "an acknowledged commit survives a power cut")
    else:
        yield DoctorFinding(
            "durability",
            "warning",
            "synchronous is below FULL: a power cut may lose what was acknowledged",
            "PRAGMA synchronous=FULL on every connection of the app's engine",
        )
    busy = int(connection.exec_driver_sql("PRAGMA busy_timeout").scalar() or 0)
    if busy < BUSY_MS_MIN:
        yield DoctorFinding(
            "busy timeout",
            "warning",
            f"writers wait {busy} ms for each other, then fail",
            "make the engine with connect_args={'timeout': 30}",
        )
    else:
        yield DoctorFinding("busy timeout", "ok", f"writers wait up to {busy / 1000:g} s for each other")


# -- standbys --------------------------------------------------------------------------------------------


_LOSING = ("off", "local")  # of synchronous_commit: the acknowledgement waits for no standby
_STANDBYS = """
    SELECT COALESCE(NULLIF(application_name, ''), 'a standby') AS name, sync_state,
        pg_wal_lsn_diff(pg_current_wal_lsn(), replay_lsn) AS bytes, date_part('epoch', replay_lag) AS seconds
    FROM pg_stat_replication ORDER BY name"""


def _about_standbys(connection: Connection) -> DoctorFinding:
    """Their names are there for every role, their states for members of pg_monitor."""
    standbys = connection.execute(text(_STANDBYS)).all()
    names = str(connection.exec_driver_sql("SHOW synchronous_standby_names").scalar())
    commit = str(connection.exec_driver_sql("SHOW synchronous_commit").scalar())
    shown = ", ".join(_shown(standby) for standby in standbys)
    if not standbys and names:
        return DoctorFinding(
            "failover", "warning", "synchronous_standby_names is set, and no standby is attached: every commit waits",
            "start the standby, or let the cluster manager take the name out",
        )  # fmt: skip
    if not standbys:
        return DoctorFinding("failover", "ok", "no standby is attached (some services replicate below PostgreSQL)")
    if names and commit not in _LOSING:
        return DoctorFinding(
            "failover", "ok", f"what was acknowledged survives a failover to a synchronous standby: {shown}"
        )
    cause = "synchronous_standby_names is empty" if not names else f"synchronous_commit is {commit}"
    return DoctorFinding(
        "failover",
        "warning",
        f"{cause}: a failover to {shown} may forget acknowledged jobs, outcomes and releases",
        "set synchronous_standby_names (Patroni: synchronous_mode: true) and leave synchronous_commit on; until then, "
        "workers that survive a failover write back what they remember (docs/failover.md)",
    )


def _shown(standby: Row[Any]) -> str:
    facts = [str(standby.sync_state)] if standby.sync_state else []
    if standby.bytes is not None:
        lag = f" and {standby.seconds:,.1f} s" if standby.seconds is not None else ""
        facts.append(f"{float(standby.bytes) / 1e6:,.1f} MB{lag} behind")
    return f"{standby.name} ({', '.join(facts)})" if facts else str(standby.name)


def _about_hosts(store: Store, connection: Connection) -> Iterator[DoctorFinding]:
    """Of an engine of the app's; ours name `read-write` themselves."""
    driver: Any = connection.connection.driver_connection
    parameters: dict[str, str] = getattr(getattr(driver, "info", None), "get_parameters", dict)()
    hosts = hosts_of(store.engine.url)  # the connection itself names the one that it tried last
    if len(hosts) > 1 and parameters.get("target_session_attrs", "any") == "any":
        yield DoctorFinding(
            "hosts", "warning", f"this engine names {len(hosts)} hosts and takes whichever answers, a standby too",
            "add target_session_attrs=read-write to its URL",
        )  # fmt: skip
