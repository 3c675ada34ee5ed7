"""`effects_enqueue(…)`: how a role that is not trusted with the tables enqueues on PostgreSQL.

    GRANT EXECUTE ON FUNCTION effects_enqueue TO writer;

It runs with the rights of its owner, finds its tables whatever the caller's search path says, and checks every
argument. No one may call it unless told so. What it writes is routed, and sealed where its type has sensitive fields,
by the worker that claims it, as after a plain INSERT.
"""

from __future__ import annotations

from effects.model.job import PAYLOAD_BYTES_MAX
from effects.model.payload_codec import SEALED
from effects.text.scrub import KEY_CHARS_MAX

ARGUMENTS = "text, jsonb, text, text, integer, timestamptz, timestamptz, text, text, integer"
# Of a key's payload, until its job type has made its own: see `adopt`. No API call compares its payload with it.
PROVISIONAL = "jsonb:"

_NAMES = ("key", "queue", "group_key", "limit_key")
_JOB_TYPE = "^[a-z][a-z0-9_]*(\\.[a-z][a-z0-9_]*)*$"


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
        _refuse("priority NOT BETWEEN -32000 AND 32000", "priority", "must be -32000 to 32000"),
        _refuse("max_attempts NOT BETWEEN 1 AND 1000", "max_attempts", "must be 1 to 1000"),
        *(
            _refuse(finite.replace("%", argument), argument, "must be a time in the years 1 to 9999")
            for argument in ("run_at", "expires_at")
        ),
    ]  # fmt: skip
    return "\n    ".join(lines)


def create_function(schema: str) -> str:
    """The statement that installs it in the schema of the tables, callable by its owner alone."""
    own = '"' + schema.replace('"', '""') + '"'
    return f"""
CREATE FUNCTION {own}.effects_enqueue(
    job_type text, payload jsonb DEFAULT '{{}}', key text DEFAULT NULL, queue text DEFAULT NULL,
    priority integer DEFAULT NULL, run_at timestamptz DEFAULT NULL, expires_at timestamptz DEFAULT NULL,
    group_key text DEFAULT NULL, limit_key text DEFAULT NULL, max_attempts integer DEFAULT NULL
) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $effects$
#variable_conflict use_column
DECLARE
    new_id bigint;
    holder bigint;
    digest_here text := '{PROVISIONAL}' || encode(sha256(convert_to(payload::text, 'UTF8')), 'hex');
    taken text;
BEGIN
    {_checks()}
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
    INSERT INTO {own}.effects_jobs (id, job_type, payload, queue, priority, run_at, age_from, expires_at, max_attempts,
        group_key, limit_key, idempotency_key)
    VALUES (new_id, effects_enqueue.job_type, effects_enqueue.payload, COALESCE(effects_enqueue.queue, 'default'),
        COALESCE(effects_enqueue.priority, 5), COALESCE(effects_enqueue.run_at, now()),
        COALESCE(effects_enqueue.run_at, now()), effects_enqueue.expires_at, effects_enqueue.max_attempts,
        effects_enqueue.group_key, effects_enqueue.limit_key, effects_enqueue.key);
    RETURN new_id;
END
$effects$;
REVOKE ALL ON FUNCTION {own}.effects_enqueue({ARGUMENTS}) FROM PUBLIC"""
