"""Jobs to be inserted, once they are checked: the table of columns from which every statement that writes jobs is made.

A new column is a field of `JobRow` and a column of the schema: INSERT, COPY and the function `effects_enqueue` then
have it. With that function a role that is not trusted with the tables enqueues on PostgreSQL:

    GRANT EXECUTE ON FUNCTION effects_enqueue TO writer;      -- and `effects grants add writer email.compose`

It runs with the rights of its owner, finds its tables whatever the caller's search path says, and checks every
argument. No one may call it unless told so, and who may enqueues the job types that rows of `effects_grants` name: for
the role that has logged in, whatever SET ROLE says, and for those from which it inherits. A payload that names further
job types (the notices of a report) needs a grant for each. What it writes is routed, and sealed where its type has
sensitive fields, by the worker that claims it, as after a plain INSERT.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from operator import attrgetter
from typing import Annotated, Any, get_args

import msgspec
from sqlalchemy import Row

from effects.kit.text.scrub import KEY_CHARS_MAX
from effects.model.job import DEFAULT_PRIORITY, DEFAULT_QUEUE, PAYLOAD_BYTES_MAX, PRIORITY_MAX, PRIORITY_MIN
from effects.model.payload_codec import SEALED
from effects.store.db.sql import Sql, columns_of


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """A column of `effects_jobs` that a field is written to.

    Args:
        name: default that of the field.
        argument: whether `effects_enqueue(…)` takes it; in the order of the fields.
        default: what that function writes instead of NULL.
        copied: whether a requeue copies it from the ended job.
    """

    name: str | None = None
    argument: bool = False
    default: str | None = None
    copied: bool = False


class JobRow(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One row to insert. What is None is not sent: the database would parse it.

    The fields with a `Column` are columns of `effects_jobs`; of these, a float is a moment, in seconds since 1970.
    """

    job_type: Annotated[str, Column(argument=True, copied=True)]
    payload: Annotated[msgspec.Raw, Column(argument=True, copied=True)]
    key: Annotated[str | None, Column(name="idempotency_key", argument=True, copied=True)] = None
    queue: Annotated[str, Column(argument=True, default=f"'{DEFAULT_QUEUE}'", copied=True)]
    priority: Annotated[int, Column(argument=True, default=str(DEFAULT_PRIORITY), copied=True)]
    run_at: Annotated[float | None, Column(argument=True, default="now()")] = None
    expires_at: Annotated[float | None, Column(argument=True)] = None
    group_key: Annotated[str | None, Column(argument=True, copied=True)] = None
    limit_key: Annotated[str | None, Column(argument=True, copied=True)] = None
    max_attempts: Annotated[int | None, Column(argument=True, copied=True)] = None
    trace_context: Annotated[str | None, Column(copied=True)] = None
    on_unknown: Annotated[str | None, Column(copied=True)] = None
    definition_id: Annotated[int | None, Column(copied=True)] = None  # of the schedule, whose job it stays
    slot: Annotated[float | None, Column(copied=True)] = None
    requeued_from: Annotated[int | None, Column()] = None

    delay: float | None = None  # seconds from now, by the clock of the database, where there is no `run_at`
    n: int  # its place in the batch
    id: int | None = None  # given where another table needed it first (`reserve_rows`)
    digest: str | None = None  # of its intent, where that is in the core's ledger


class ReservedJob(msgspec.Struct, frozen=True):
    """A job that has its id and is checked, and not yet written."""

    id: int
    row: JobRow


FIELDS = JobRow.__struct_fields__
KINDS = columns_of(JobRow)
COLUMNS = {  # field → column
    field.name: column
    for field in msgspec.structs.fields(JobRow)
    for column in get_args(field.type)
    if isinstance(column, Column)
}
NAMES = {field: column.name or field for field, column in COLUMNS.items()}
_GETTERS = {field.name: attrgetter(field.name) for field in msgspec.structs.fields(JobRow) if field.default is None}


def fields_used(rows: Iterable[JobRow]) -> frozenset[str]:
    """The fields that are not None in every row."""
    return frozenset(name for name in FIELDS if name not in _GETTERS or set(map(_GETTERS[name], rows)) != {None})


def kinds_of(fields: Collection[str]) -> dict[str, str]:
    """Field → kind, as of `Sql.rows`."""
    return {field: kind for field, kind in KINDS.items() if field in fields}


def insert_text(
    sql: Sql, fields: Collection[str], expression: Callable[[str], str], *, identity: str, source: str
) -> str:
    """INSERT of the jobs that `source` has.

    Args:
        fields: those that may be set; the others are left out.
        expression: field → its value in SQL, a moment as seconds since 1970.
        identity: the id, as an expression; empty: the next one.
        source: FROM and what follows; empty: one row.
    """

    def value(field: str) -> str:
        return sql.time(expression(field)) if KINDS[field] == "num" else expression(field)

    starts = [value("run_at")] if "run_at" in fields else []
    starts += [sql.after(expression("delay"))] if "delay" in fields else []
    run_at = f"COALESCE({', '.join([*starts, sql.now])})" if starts else sql.now
    columns = {"id": identity} if identity else {}
    columns |= {name: value(field) for field, name in NAMES.items() if field in fields}
    columns |= {"run_at": run_at, "age_from": run_at, "created_at": sql.now, "updated_at": sql.now, "routed": "true"}
    return f"INSERT INTO {sql.jobs} ({', '.join(columns)}) SELECT {', '.join(columns.values())} {source}"


def copied_columns(sql: Sql) -> str:
    """What `copy_of` reads, in a SELECT from `effects_job_history`."""
    conversions = {"json": sql.json_text, "num": sql.epoch}
    columns = [(NAMES[name], KINDS[name], name) for name, column in COLUMNS.items() if column.copied]
    return ", ".join(f"{conversions.get(kind, str)(column)} AS {name}" for column, kind, name in columns)


def copy_of(row: Row[Any]) -> JobRow:
    """The job that carries out the effect of an ended one again, from its `id` and `copied_columns`."""
    fields = {name: getattr(row, name) for name, column in COLUMNS.items() if column.copied}
    fields["payload"] = msgspec.Raw(row.payload.encode())
    return JobRow(n=0, requeued_from=row.id, **fields)


_TYPES = {"text": "text", "json": "jsonb", "int": "integer", "num": "timestamptz"}
_ARGUMENTS = {field: _TYPES[KINDS[field]] for field, column in COLUMNS.items() if column.argument}
_DEFAULTS = {"job_type": "", "payload": " DEFAULT '{}'"}
# Of a key's payload, until its job type has made its own: see `adopt`. No API call compares its payload with it.
PROVISIONAL = "jsonb:"

_NAMES = [argument for argument, kind in _ARGUMENTS.items() if kind == "text" and argument != "job_type"]
_TIMES = [argument for argument, kind in _ARGUMENTS.items() if kind == "timestamptz"]
_JOB_TYPE = "^[a-z][a-z0-9_]*([.][a-z][a-z0-9_]*)*$"


def _refuse(condition: str, argument: str, rule: str) -> str:
    return (
        f"IF {condition} THEN RAISE EXCEPTION USING ERRCODE = '22023', "
        f"MESSAGE = 'effects_enqueue: {argument} {rule}'; END IF;"
    )


def _checks() -> str:
    """No value is quoted in an error."""
    printable = f"must have 1 to {KEY_CHARS_MAX} printable characters"
    name = f"length(%) NOT BETWEEN 1 AND {KEY_CHARS_MAX} OR % ~ '[[:cntrl:]]'"
    finite = "% IS NOT NULL AND NOT (% >= '0001-01-01 00:00:00+00' AND % < '10000-01-01 00:00:00+00')"
    lines = [
        _refuse(
            f"COALESCE(length(job_type) > {KEY_CHARS_MAX} OR job_type !~ '{_JOB_TYPE}', true)",
            "job_type", "must be dotted lower case, such as report.chunk",
        ),
        _refuse("COALESCE(jsonb_typeof(payload) <> 'object', true)", "payload", "must be a JSON object"),
        _refuse(
            f"octet_length(payload::text) > {PAYLOAD_BYTES_MAX}",
            "payload", f"must have at most {PAYLOAD_BYTES_MAX} bytes",
        ),
        _refuse(f"payload ? '{SEALED}'", "payload", f"must not have the field {SEALED}"),
        *(
            _refuse(name.replace("%", f"effects_enqueue.{argument}"), argument, printable) for argument in _NAMES
        ),
        _refuse(
            f"priority NOT BETWEEN {PRIORITY_MIN} AND {PRIORITY_MAX}", "priority",
            f"must be {PRIORITY_MIN} to {PRIORITY_MAX}",
        ),
        _refuse("max_attempts NOT BETWEEN 1 AND 1000", "max_attempts", "must be 1 to 1000"),
        *(
            _refuse(finite.replace("%", argument), argument, "must be a time in the years 1 to 9999")
            for argument in _TIMES
        ),
    ]  # fmt: skip
    return "\n    ".join(lines)


def _refuse_ungranted(own: str) -> str:
    """The job type, and each that a notice in the payload names; and the fields of their payloads."""
    return f"""FOR named IN
        SELECT effects_enqueue.job_type AS job_type, effects_enqueue.payload AS payload
        UNION ALL SELECT n ->> 'job_type', n -> 'payload'
        FROM jsonb_path_query(effects_enqueue.payload, 'strict $.notify.** ? (exists(@.job_type))',
            silent => true) AS n
    LOOP
        SELECT jsonb_agg(g.trusted_fields) INTO trusted FROM {own}.effects_grants AS g
        JOIN pg_roles AS r ON r.rolname = g.role
        WHERE g.job_type = named.job_type AND pg_has_role(session_user, r.oid, 'USAGE');
        IF trusted IS NULL THEN
            RAISE EXCEPTION USING ERRCODE = '42501', MESSAGE = format('effects_enqueue: role %I has no grant for a job '
                'type that is asked for; `effects grants add` gives it one', session_user);
        END IF;
        IF EXISTS (SELECT FROM jsonb_path_query(trusted, '$[*][*]') AS f WHERE named.payload ? (f #>> '{{}}')) THEN
            RAISE EXCEPTION USING ERRCODE = '42501',
                MESSAGE = 'effects_enqueue: the payload has a field that only trusted code may fill';
        END IF;
    END LOOP;"""


def create_function(schema: str) -> str:
    """The statement that installs it in the schema of the tables, callable by its owner alone."""
    own = '"' + schema.replace('"', '""') + '"'
    values = _values()
    signature = ", ".join(f"{name} {kind}{_DEFAULTS.get(name, ' DEFAULT NULL')}" for name, kind in _ARGUMENTS.items())
    return f"""
CREATE FUNCTION {own}.effects_enqueue(
    {signature}
) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $effects$
#variable_conflict use_column
DECLARE
    new_id bigint;
    holder bigint;
    digest_here text := '{PROVISIONAL}' || encode(sha256(convert_to(payload::text, 'UTF8')), 'hex');
    taken text;
    named record;
    trusted jsonb;
BEGIN
    {_checks()}
    {_refuse_ungranted(own)}
    IF effects_enqueue.group_key IS NOT NULL THEN  -- ids rise in the order of commit
        INSERT INTO {own}.effects_job_groups (group_key) VALUES (effects_enqueue.group_key)
        ON CONFLICT (group_key) DO UPDATE SET group_key = excluded.group_key;
    END IF;
    new_id := nextval('{own}.effects_jobs_id_seq');
    IF effects_enqueue.key IS NOT NULL THEN
        INSERT INTO {own}.effects_effect_ledger (job_type, key, digest, job_id)
        VALUES (effects_enqueue.job_type, effects_enqueue.key, digest_here, new_id) ON CONFLICT DO NOTHING;
        SELECT l.job_id, l.digest INTO holder, taken FROM {own}.effects_effect_ledger AS l
        WHERE l.job_type = effects_enqueue.job_type AND l.key = effects_enqueue.key;
        IF holder <> new_id THEN
            IF taken LIKE '{PROVISIONAL}%' AND taken <> digest_here THEN
                RAISE EXCEPTION USING ERRCODE = '23505',
                    MESSAGE = 'effects_enqueue: the key belongs to a job that has another payload';
            END IF;
            RETURN holder;
        END IF;
    END IF;
    INSERT INTO {own}.effects_jobs (id, {", ".join(values)})
    VALUES (new_id, {", ".join(values.values())});
    RETURN new_id;
END
$effects$;
REVOKE ALL ON FUNCTION {own}.effects_enqueue({", ".join(_ARGUMENTS.values())}) FROM PUBLIC"""


def _values() -> dict[str, str]:
    """Column → its value, but for the id."""
    values = {
        NAMES[argument]: value if (default := COLUMNS[argument].default) is None else f"COALESCE({value}, {default})"
        for argument, value in ((argument, f"effects_enqueue.{argument}") for argument in _ARGUMENTS)
    }
    return {**values, "age_from": values["run_at"]}
