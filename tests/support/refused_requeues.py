"""A job that may not be requeued, by a rule of the application's own database."""

from __future__ import annotations

from effects import Effects
from tests.support.manual_workers import run_sql


def refuse_requeues_of(app: Effects, job_id: int) -> None:
    """By a trigger of the application's own."""
    if app.store.is_postgresql:
        run_sql(
            app,
            f"""CREATE FUNCTION refuse() RETURNS trigger AS $$ BEGIN
            IF NEW.requeued_from = {job_id} THEN RAISE EXCEPTION 'no'; END IF; RETURN NEW; END $$ LANGUAGE plpgsql""",
        )
        run_sql(app, "CREATE TRIGGER refuse BEFORE INSERT ON effects_jobs FOR EACH ROW EXECUTE FUNCTION refuse()")
    else:
        run_sql(
            app,
            f"""CREATE TRIGGER refuse BEFORE INSERT ON effects_jobs WHEN NEW.requeued_from = {job_id}
            BEGIN SELECT RAISE(ABORT, 'no'); END""",
        )
