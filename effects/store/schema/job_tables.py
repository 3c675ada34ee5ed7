"""Tables of the queue: live and ended jobs, attempts, groups, effects; schedules; what holds jobs back.

The table is the contract: a plain `INSERT INTO effects_jobs (job_type, payload)` works. No foreign key points at
`effects_jobs`: it holds live work only and its rows leave it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Double,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    Table,
    Text,
    text,
)

from effects.model.limits import PERIOD_SECONDS_MIN
from effects.store.schema.columns import (
    COUNT_MAX,
    COUNTS,
    POSTGRES_NOW,
    SECONDS,
    SQLITE_NOW,
    TIMES,
    DatabaseNow,
    Identity,
    Json,
    UtcTime,
    check,
    check_job,
    check_keys,
    check_payload,
    check_range,
    check_types,
    flag_column,
    int_column,
    ledger_columns,
    now_column,
    numeric,
    partial_index,
    seconds_column,
)

GROUP_RUNNING = "ux_effects_jobs_group_running"  # of one group at most one job runs
STATUS_LIVE = "status IN ('queued', 'running', 'failed')"
STATUS_ENDED = "status IN ('succeeded', 'dead', 'cancelled')"
# Jobs that wait, of the three kinds that a claim looks at apart: the predicates of their indexes, word for word.
PLAIN = "status <> 'running' AND limit_key IS NULL AND group_key IS NULL"
LIMITED = "status <> 'running' AND limit_key IS NOT NULL AND group_key IS NULL"
GROUPED = "status <> 'running' AND group_key IS NOT NULL"
RECENT = 10_000  # ids of jobs that are read, so that the view costs the same after a year
# SQLite continues after the highest id ever used: after one near 2^63 every enqueue would fail.
REFUSE_FAR_IDS = """
    CREATE TRIGGER effects_jobs_far_id BEFORE INSERT ON effects_jobs
    WHEN NEW.id > 1000000 + (SELECT seq FROM sqlite_sequence WHERE name = 'effects_jobs')
    BEGIN SELECT RAISE(ABORT, 'effects_jobs.id is far behind the newest: leave it out'); END"""
PAUSED_SECONDS_MAX = 1e15  # what a run of pauses may add up to


def _facts() -> list[Column[Any]]:
    """What a live and an ended job have in common. What an attempt changes comes first (see `ledger_columns`), and the
    payload last: SQLite reads through a long value to the columns behind it.
    """
    return [
        Column("lease_token", BigInteger, nullable=False, server_default=text("0")),
        int_column("attempts"),
        int_column("lost_count"),
        int_column("unknown_count"),
        Column("last_error", Text),
        Column("error_code", Text),
        Column("priority", SmallInteger, nullable=False, server_default=text("5")),
        Column("run_at", UtcTime, nullable=False, server_default=DatabaseNow()),
        Column("max_attempts", Integer),
        Column("definition_id", BigInteger),
        Column("slot", UtcTime),
        Column("requeued_from", BigInteger),
        Column("expires_at", UtcTime),
        now_column("created_at"),
        Column("job_type", Text, nullable=False),
        Column("queue", Text, nullable=False, server_default="default"),
        Column("group_key", Text),
        Column("limit_key", Text),
        Column("idempotency_key", Text),
        Column("on_unknown", Text),  # NULL: the job type's
        Column("trace_context", Text),
        Column("payload", Json, nullable=False, server_default=text("'{}'")),
    ]


FACTS = tuple(column.name for column in _facts())


def attempts_view(*, postgresql: bool) -> str:
    """Every attempt: those with their own row, and those in the row of a job that was done at its first attempt.

    SQLite reads it by its indexes only while both halves have the same affinities, so literals are cast.
    """
    moment = "timestamptz" if postgresql else "bigint"
    return f"""
    CREATE VIEW effects_job_attempts AS
    SELECT job_id, lease_token, attempt, started_at, finished_at, worker, outcome, verdict, error_type, error_code,
        message, stack, detail, error_text, result, late_outcome, late_verdict, late_code, late_message, late_at
    FROM effects_attempt_log
    UNION ALL
    SELECT id, lease_token, attempts, started_at, finished_at, worker, CAST('succeeded' AS text), verdict,
        CAST(NULL AS text), CAST(NULL AS text), message, CAST(NULL AS text), detail, CAST(NULL AS jsonb), result,
        CAST(NULL AS text), CAST(NULL AS text), CAST(NULL AS text), CAST(NULL AS text), CAST(NULL AS {moment})
    FROM effects_job_history WHERE started_at IS NOT NULL"""


def statistics_views(*, postgresql: bool) -> Iterator[str]:
    """The views for other programs; nothing in them is personal: no payload, key or text.

    Times are texts in UTC on SQLite, which has no type for them.
    """
    now = POSTGRES_NOW if postgresql else SQLITE_NOW

    def moment(column: str) -> str:
        return column if postgresql else f"datetime({column} / 1000, 'unixepoch')"

    def seconds_since(column: str) -> str:
        if postgresql:
            return f"CAST(extract(epoch FROM {now} - {column}) AS double precision)"
        return f"({now} - {column}) / 1000.0"

    yield f"""
    CREATE VIEW effects_due AS
    SELECT id, job_type, queue, {_shown("status")} AS status, priority, attempts, error_code,
        {moment("run_at")} AS due_at, {seconds_since("run_at")} AS due_seconds
    FROM effects_jobs WHERE status <> 'running' AND run_at <= {now}"""
    effect = "CASE WHEN u.unknown THEN CAST('unknown' AS text) ELSE CAST('not_done' AS text) END"
    yield f"""
    CREATE VIEW effects_failed AS
    SELECT h.id, h.job_type, h.queue, {effect} AS effect, h.attempts, h.error_code,
        {moment("h.created_at")} AS created_at, {moment("h.finished_at")} AS finished_at
    FROM effects_unresolved AS u JOIN effects_job_history AS h ON h.id = u.job_id"""
    unfinished = "CAST(NULL AS timestamptz)" if postgresql else "NULL"
    yield f"""
    CREATE VIEW effects_recent AS
    SELECT id, job_type, queue, {_shown("status")} AS status, attempts, error_code,
        {moment("created_at")} AS created_at, {unfinished} AS finished_at
    FROM effects_jobs
    UNION ALL
    SELECT id, job_type, queue, status, attempts, error_code, {moment("created_at")}, {moment("finished_at")}
    FROM effects_job_history WHERE id > (SELECT max(id) - {RECENT} FROM effects_job_history)"""


def _shown(status: str) -> str:
    """A status in the words that people and `--status` have for it."""
    return f"CASE {status} WHEN 'failed' THEN CAST('retrying' AS text) ELSE {status} END"


def job_checks() -> list[CheckConstraint]:
    """Constraints of `effects_jobs`, which apply to every writer."""
    table = "effects_jobs"
    return [
        check_keys(table, "job_type", "queue", "group_key", "limit_key", "idempotency_key", "quarantined_from"),
        check_range(table, TIMES, "run_at", "age_from", "expires_at", "started_at"),
        check_range(table, COUNTS, "attempts", "lost_count", "unknown_count"),
        check_job(table),
        check_payload(table),
        check_types(
            table,
            texts=["last_error", "error_code", "trace_context", "locked_by"],
            times=["slot", "created_at", "locked_until", "released_at", "updated_at"],
            flags=["routed", "cancel_requested", "has_attempts"],
        ),
    ]


def job_tables(metadata: MetaData) -> list[Table]:
    return [
        _jobs(metadata),
        _history(metadata),
        _unresolved(metadata),
        _attempt_log(metadata),
        Table(
            "effects_job_groups",
            metadata,
            Column("group_key", Text, primary_key=True),
            flag_column("blocked"),
        ),
        Table(
            "effects_effect_ledger",
            metadata,
            Column("job_type", Text, primary_key=True),
            Column("key", Text, primary_key=True),
            *ledger_columns(),
            postgresql_with={"fillfactor": "50"},  # an update finds room beside its row, and writes no index
        ),
    ]


def _jobs(metadata: MetaData) -> Table:
    jobs = Table(
        "effects_jobs",
        metadata,
        Column("id", Identity, primary_key=True, autoincrement=True),
        now_column("age_from"),
        now_column("updated_at"),
        Column("locked_until", UtcTime),
        Column("started_at", UtcTime),
        Column("released_at", UtcTime),
        flag_column("routed"),
        flag_column("cancel_requested"),
        flag_column("has_attempts"),
        Column("status", Text, nullable=False, server_default="queued"),
        Column("locked_by", Text),
        Column("quarantined_from", Text),
        *_facts(),
        CheckConstraint(STATUS_LIVE, name="ck_effects_jobs_status"),
        CheckConstraint("on_unknown IN ('repeat', 'repeat_once', 'hold')", name="ck_effects_jobs_on_unknown"),
        *job_checks(),
        sqlite_autoincrement=True,
        # Dead tuples make a queue table slow: vacuum early, and let a claim write beside the row that it replaces.
        postgresql_with={
            "fillfactor": "50",
            "autovacuum_vacuum_scale_factor": "0.02",
            "autovacuum_vacuum_threshold": "500",
            "autovacuum_analyze_scale_factor": "0.05",
        },
    )
    _job_indexes(jobs)
    return jobs


def _history(metadata: MetaData) -> Table:
    history = Table(
        "effects_job_history",
        metadata,
        Column("id", BigInteger, primary_key=True, autoincrement=False),
        *_facts(),
        Column("status", Text, nullable=False),
        now_column("finished_at"),
        *_only_attempt(),
        CheckConstraint(STATUS_ENDED, name="ck_effects_job_history_status"),
    )
    partial_index("ix_effects_job_history_failed", history, ["status", "finished_at"], "status <> 'succeeded'")
    partial_index("ix_effects_job_history_unsuccessful", history, ["status", "id"], "status <> 'succeeded'")
    partial_index("ix_effects_job_history_requeued_from", history, ["requeued_from"], "requeued_from IS NOT NULL")
    return history


def _unresolved(metadata: MetaData) -> Table:
    unresolved = Table(
        "effects_unresolved",
        metadata,
        Column("job_id", BigInteger, primary_key=True, autoincrement=False),
        Column("job_type", Text, nullable=False),
        Column("queue", Text, nullable=False),
        Column("limit_key", Text),
        Column("error_code", Text),
        flag_column("unknown"),  # its effect may have happened
        now_column("finished_at"),
        # What a person has resolved in bulk is walked over by each list until it is vacuumed.
        postgresql_with={"autovacuum_vacuum_scale_factor": "0.02", "autovacuum_vacuum_threshold": "500"},
    )
    Index("ix_effects_unresolved_finished_at", unresolved.c.finished_at, unresolved.c.job_id)
    return unresolved


def _only_attempt() -> list[Column[Any]]:
    """The attempt of a job that was done at its first, so that a success is one row. NULL in any other row."""
    return [
        Column("started_at", UtcTime),
        Column("worker", Text),
        Column("verdict", Text),
        Column("message", Text),
        Column("detail", Json),
        Column("result", Json),
    ]


def _attempt_log(metadata: MetaData) -> Table:
    """Every attempt but those that `effects_job_history` holds; the view `effects_job_attempts` has both."""
    return Table(
        "effects_attempt_log",
        metadata,
        Column("job_id", BigInteger, primary_key=True, autoincrement=False),
        Column("lease_token", BigInteger, primary_key=True, autoincrement=False),
        Column("attempt", Integer, nullable=False),
        Column("started_at", UtcTime, nullable=False),
        Column("finished_at", UtcTime, nullable=False),
        Column("worker", Text),
        Column("outcome", Text, nullable=False),
        Column("verdict", Text),
        Column("error_type", Text),
        Column("error_code", Text),
        Column("message", Text),
        Column("stack", Text),
        Column("detail", Json),
        Column("error_text", Json),  # kept by opt-in only, see `effects.keys.sealing`
        Column("result", Json),  # as well
        # What its worker learnt after it had lost the lease, of an attempt that is recorded as lost or unknown.
        Column("late_outcome", Text),
        Column("late_verdict", Text),
        Column("late_code", Text),
        Column("late_message", Text),
        Column("late_at", UtcTime),
        CheckConstraint("verdict IN ('done', 'not_done', 'unknown')", name="ck_effects_attempt_log_verdict"),
    )


def _job_indexes(jobs: Table) -> None:
    partial_index("ix_effects_jobs_ready", jobs, ["queue", "priority", "run_at", "id"], PLAIN)
    partial_index("ix_effects_jobs_ready_limited", jobs, ["queue", "limit_key", "priority", "run_at", "id"], LIMITED)
    partial_index("ix_effects_jobs_ready_grouped", jobs, ["queue", "run_at", "id"], GROUPED)
    partial_index("ix_effects_jobs_group", jobs, ["group_key", "id"], "group_key IS NOT NULL")
    partial_index("ix_effects_jobs_running_worker", jobs, ["locked_by"], "status = 'running'")
    partial_index("ix_effects_jobs_failed", jobs, ["queue"], "status = 'failed'")
    partial_index(GROUP_RUNNING, jobs, ["group_key"],
             "status = 'running' AND group_key IS NOT NULL", unique=True)  # fmt: skip
    partial_index("ux_effects_jobs_requeued_from", jobs, ["requeued_from"], "requeued_from IS NOT NULL", unique=True)
    partial_index("ix_effects_jobs_definition", jobs, ["definition_id"], "definition_id IS NOT NULL")


def schedule_tables(metadata: MetaData) -> list[Table]:
    definitions = Table(
        "effects_job_definitions",
        metadata,
        Column("id", Identity, primary_key=True, autoincrement=True),
        Column("name", Text, nullable=False, unique=True),
        Column("job_type", Text, nullable=False),
        Column("payload", Json, nullable=False, server_default=text("'{}'")),
        Column("cron", Text, nullable=False),
        Column("zone", Text, nullable=False, server_default="UTC"),
        Column("max_attempts", Integer),
        Column("overlap", Text, nullable=False, server_default="skip"),
        Column("catch_up", Text, nullable=False, server_default="latest"),
        int_column("catch_up_max", 100),
        Column("key", Text),
        flag_column("in_code"),
        flag_column("retired"),  # in code once, and no longer
        flag_column("enabled", "true"),  # the operator's word, which no deploy changes
        Column("paused_by", Text),
        now_column("last_slot"),  # slots up to here have been dealt with
        now_column("created_at"),
        now_column("updated_at"),
        sqlite_autoincrement=True,
    )
    runs = Table(
        "effects_definition_runs",
        metadata,
        Column("definition_id", BigInteger, primary_key=True, autoincrement=False),
        Column("slot", UtcTime, primary_key=True),
        Column("job_id", BigInteger),
        Column("outcome", Text, nullable=False, server_default="enqueued"),
        Column("reason", Text),
        now_column("created_at"),
        CheckConstraint(
            "outcome IN ('enqueued', 'existing', 'skipped', 'failed')", name="ck_effects_definition_runs_outcome"
        ),
    )
    return [definitions, runs]


def limit_checks() -> list[CheckConstraint]:
    """What a row of `effects_limits` must be: one that cannot be calculated with would stop the claims of its queue."""
    table = "effects_limits"
    return [
        check_keys(table, "limit_key", "parent_key"),
        check_range(
            table,
            TIMES,
            "refilled_at",
            "paused_until",
            "paused_from",
            "breaker_changed_at",
            "updated_at",
        ),
        check_range(table, COUNTS, "max_in_flight", "rate_tokens", "rate_burst", "breaker_after", "breaker_failures"),
        check_range(table, SECONDS, "rate_period_seconds", "breaker_seconds"),
        _check_limits(table),
        check_types(table, texts=["pause_reason"]),
    ]


def _check_limits(table: str) -> CheckConstraint:
    """Limits that something can run under, whole or absent."""
    conditions = [
        "max_in_flight > 0",
        f"COALESCE(rate_tokens > 0 AND rate_period_seconds >= {PERIOD_SECONDS_MIN} AND rate_burst > 0, "
        "rate_tokens IS NULL)",
        "COALESCE(breaker_after > 0 AND breaker_seconds > 0, breaker_after IS NULL)",
        f"tokens BETWEEN -{COUNT_MAX} AND {COUNT_MAX}",
        f"paused_seconds BETWEEN 0 AND {PAUSED_SECONDS_MAX:.0f}",
    ]
    numbers = [f"({column} IS NULL OR {numeric(column)})" for column in ("tokens", "paused_seconds")]
    return check(table, "limits", conditions, [*conditions, *numbers])


def queue_checks() -> list[CheckConstraint]:
    """What a row of `effects_queues` must be."""
    table = "effects_queues"
    return [
        check_keys(table, "queue"),
        check_range(table, TIMES, "paused_until"),
        check_types(table, texts=["paused_by", "reason"]),
    ]


def limit_tables(metadata: MetaData) -> list[Table]:
    limits = Table(
        "effects_limits",
        metadata,
        Column("limit_key", Text, primary_key=True),
        Column("parent_key", Text),
        Column("max_in_flight", Integer),
        Column("rate_tokens", Integer),  # so many starts
        Column("rate_period_seconds", Double),  # in so many seconds
        Column("rate_burst", Integer),  # at most so many at once; also what the bucket holds
        Column("tokens", Double),  # in the bucket at `refilled_at`
        Column("refilled_at", UtcTime),
        Column("paused_until", UtcTime),
        Column("pause_reason", Text),
        Column("paused_from", UtcTime),  # where a run of pauses began that follow each other closely
        seconds_column("paused_seconds"),  # of that run
        Column("breaker_after", Integer),  # failures in a row that open the breaker; NULL is no breaker
        Column("breaker_seconds", Double),  # until one attempt may probe
        Column("breaker_state", Text, nullable=False, server_default="closed"),
        int_column("breaker_failures"),
        Column("breaker_changed_at", UtcTime),
        now_column("updated_at"),
        CheckConstraint("max_in_flight > 0", name="ck_effects_limits_max_in_flight"),
        CheckConstraint("breaker_state IN ('closed', 'open')", name="ck_effects_limits_breaker_state"),
        *limit_checks(),
        # A row with a rate is written with every claim.
        postgresql_with={"fillfactor": "50", "autovacuum_vacuum_scale_factor": "0.1"},
    )
    partial_index("ix_effects_limits_parent", limits, ["parent_key"], "parent_key IS NOT NULL")
    queues = Table(
        "effects_queues",
        metadata,
        Column("queue", Text, primary_key=True),
        Column("paused_until", UtcTime),
        Column("paused_by", Text),
        Column("reason", Text),
        *queue_checks(),
    )
    return [limits, queues]
