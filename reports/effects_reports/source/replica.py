"""A replica in the primary's place: what is read there is no older than a bound, and holds what the plan has seen.

What a replica is behind is measured by the primary: by what it has committed, and by its clock alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec
import sqlalchemy as sa
from sqlalchemy import Connection, Engine, Row
from sqlalchemy.exc import OperationalError

from effects.extend.arguments import arguments, require
from effects.extend.process import own_logger
from effects.extend.sql import database_condition
from effects_reports.errors import DefinitionInvalid, ReportRefused
from effects_reports.source.snapshot import has_state, reading

Ready: TypeAlias = Callable[[Connection], None]
T = TypeVar("T")
Behind: TypeAlias = Literal["wait", "primary", "refuse"]
BEHIND: tuple[Behind, ...] = ("wait", "primary", "refuse")
CATCH_UP_SECONDS = 1.0  # a replica that follows at once needs a moment for what was committed a moment ago
LOOK_SECONDS = 0.05
_SERIALIZATION_FAILURE = "40001"
_log = own_logger("effects.reports")

_PRIMARY = sa.text(
    "SELECT CAST(clock_timestamp() AS text) AS clock, CAST(pg_current_wal_insert_lsn() AS text) AS position, "
    "CAST(system_identifier AS text) AS cluster, "
    "CAST(CAST('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8) AS bit(32)) AS int) AS timeline "
    "FROM pg_control_system()"
)
# Its timeline by what it receives, or in a role that may not see that by its last restartpoint.
_REPLICA = sa.text(
    "SELECT pg_is_in_recovery() AS recovers, CAST(system_identifier AS text) AS cluster, "
    "GREATEST(min_recovery_end_timeline, (SELECT max(received_tli) FROM pg_stat_wal_receiver)) AS timeline, "
    "pg_last_wal_replay_lsn() >= CAST(:newest AS pg_lsn) AS caught_up, "
    "pg_last_wal_replay_lsn() >= CAST(COALESCE(:position, '0/0') AS pg_lsn) AS holds_plan, "
    "EXTRACT(epoch FROM CAST(:clock AS timestamptz) - pg_last_xact_replay_timestamp()) AS lag_seconds "
    "FROM pg_control_system(), pg_control_recovery()"
).bindparams(sa.bindparam("position", type_=sa.Text()))
_POSITION = sa.text(
    "SELECT CASE WHEN pg_is_in_recovery() THEN 'replica' ELSE 'primary' END AS server, "
    "CAST(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_insert_lsn() END AS text) "
    "AS position"
)


@dataclass(frozen=True, slots=True)
class Replica:
    """A streaming replica of the app's database, for reports: ``Effects(report_engines={"replica": Replica(url)})``.

    It is looked at before every plan and every chunk, on the connection that reads: its lag, whether it follows the
    primary of now, and whether it holds what the plan has seen.

    Args:
        url: of that server, or an engine, which stays yours to close. No pooler that spreads transactions over servers.
        lag_seconds_max: how old what is read may be, by commits of the primary. Default 60.
            One that holds all that was committed before the attempt is never behind.
        behind: what happens where it is further behind, cannot be reached, or is no replica any more. `wait` (default):
            the step looks again every five seconds. `primary`: this plan or chunk reads the primary. `refuse`: the run
            fails, with the reason.
    """

    url: Engine | str = field(repr=False)
    lag_seconds_max: float = 60.0
    behind: Behind = "wait"

    def check(self, name: str) -> None:
        """Refuse wrong values.

        Raises:
            DefinitionInvalid: names the argument.
        """
        who = f"report_engines: replica {name!r}"
        require(f"{who}: lag_seconds_max", self.lag_seconds_max, arguments.positive, DefinitionInvalid)
        if self.behind not in BEHIND:
            raise DefinitionInvalid(f"{who}: behind is {self.behind!r}; give {', '.join(BEHIND)}")


class ReplicaUnfit(Exception):
    """The replica cannot be read now: `code` and the message say why."""

    def __init__(self, code: str, why: str) -> None:
        super().__init__(why)
        self.code = code


class Position(msgspec.Struct, frozen=True):
    """What a plan has seen: the server that it has read (`replica`, `primary`) and how far that was."""

    server: str
    lsn: str


class ReportSource:
    """The database that a report reads, or a replica with the primary behind it.

    Args:
        primary: the app's database.
    """

    def __init__(self, engine: Engine, replica: Replica | None, primary: Engine) -> None:
        self.engine, self.replica, self.primary = engine, replica, primary

    @contextmanager
    def reading(
        self, *, seconds: float, snapshot: str | None = None, position: Position | None = None, primary: bool = False
    ) -> Iterator[Connection]:
        """One read-only transaction, as `reading` begins it.

        Args:
            position: what it must hold beside its bound.
            primary: read the primary in any case.

        Raises:
            ReplicaUnfit: the replica may not be read, and the report waits for it.
            ReportRefused: the same, and it refuses.
        """
        if snapshot is not None:
            # Held by the server that the plan has read: no lag makes it older.
            primary = position is not None and position.server == "primary"
            with reading(self.primary if primary else self.engine, seconds=seconds, snapshot=snapshot) as connection:
                yield connection
            return
        with ExitStack() as stack:

            def begin(engine: Engine, ready: Ready | None) -> Connection:
                return stack.enter_context(reading(engine, seconds=seconds, ready=ready))

            yield self.open(begin, position, primary)

    def open(
        self, begin: Callable[[Engine, Ready | None], T], position: Position | None = None, primary: bool = False
    ) -> T:
        """What `begin` makes of the engine to read; it calls its second argument with each new connection.

        Raises:
            ReplicaUnfit, ReportRefused: as `reading`.
        """
        if self.replica is None:
            return begin(self.engine, None)
        if primary:
            return begin(self.primary, None)
        with self.primary.connect() as connection:
            newest = connection.execute(_PRIMARY).one()
        try:
            return begin(self.engine, lambda connection: self._check(connection, newest, position))
        except ReplicaUnfit as error:
            unfit = error
        except OperationalError as error:
            unfit = ReplicaUnfit("replica_unavailable", f"the replica cannot be reached: {database_condition(error)}")
        if self.replica.behind == "refuse":
            raise ReportRefused(str(unfit), code=unfit.code)
        if self.replica.behind == "wait":
            raise unfit
        _log.warning("report.reads_primary", extra={"reason": str(unfit)})
        return begin(self.primary, None)

    def position_of(self, connection: Connection) -> Position | None:
        """Where the server of this transaction is, at least as far as what it sees; None where there is no replica."""
        if self.replica is None:
            return None
        return Position(*connection.execute(_POSITION).one())

    def _check(self, connection: Connection, newest: Row[Any], position: Position | None) -> None:
        values = {"newest": newest.position, "clock": newest.clock, "position": position and position.lsn}
        until = time.monotonic() + CATCH_UP_SECONDS
        connection.execution_options(postgresql_readonly=True)  # a replica begins no other transaction
        while (unfit := self._unfit(connection.execute(_REPLICA, values).one(), newest)) is not None:
            connection.rollback()
            if unfit.code != "replica_behind" or time.monotonic() >= until:
                raise unfit
            time.sleep(LOOK_SECONDS)
        connection.rollback()

    def _unfit(self, row: Row[Any], newest: Row[Any]) -> ReplicaUnfit | None:
        assert self.replica is not None
        if row.cluster != newest.cluster:
            return ReplicaUnfit("replica_of_another", "the replica is not one of the app's database")
        if not row.recovers:
            return ReplicaUnfit("replica_promoted", "the replica was promoted: it follows no primary any more")
        if row.timeline < newest.timeline:
            why = f"the replica is on timeline {row.timeline} and has not followed the primary to {newest.timeline}"
            return ReplicaUnfit("replica_behind", why)
        if not row.holds_plan:
            return ReplicaUnfit("replica_behind", "the replica has not replayed what the report's plan has seen")
        if row.caught_up or (row.lag_seconds is not None and row.lag_seconds <= self.replica.lag_seconds_max):
            return None
        lag = "an unknown time" if row.lag_seconds is None else f"{row.lag_seconds:.0f} s"
        why = f"the replica is {lag} behind, and at most {self.replica.lag_seconds_max:g} s are allowed"
        return ReplicaUnfit("replica_behind", why)


def was_conflict(error: Exception) -> bool:
    """Whether a replica ended the statement because it had to replay what would change its rows."""
    return has_state(error, _SERIALIZATION_FAILURE)
