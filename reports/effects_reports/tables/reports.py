"""`generated_reports`, the ledger: which run holds a key, and where its file is."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from sqlalchemy import Connection

from effects.extend.sql import Sql, Store, as_json


class Generated(msgspec.Struct, frozen=True, kw_only=True):
    """One run's row in the ledger; what concerns its file is None until it is ready."""

    run_id: str
    report: str
    key: str
    generation: int
    state: str
    job_id: int
    artifact: str | None
    filename: str | None
    content_type: str | None
    rows: int | None
    bytes: int | None
    sha256: str | None
    downloads: int


def _generated(sql: Sql) -> str:
    names = ", ".join(Generated.__struct_fields__)
    return f"SELECT {names} FROM {sql.generated_reports} WHERE run_id {sql.any_of('ids')}"


def generated(store: Store, connection: Connection, run_ids: Sequence[str]) -> dict[str, Generated]:
    """Run id → its row in the ledger."""
    rows = store.all(connection, _generated, ids=as_json(list(run_ids)))
    return {row.run_id: Generated(**row._mapping) for row in rows}


def _newest_of_key(sql: Sql) -> str:
    return f"""
    SELECT run_id FROM {sql.generated_reports} WHERE report = :report AND key = :key
    ORDER BY generation DESC LIMIT 1"""


def newest_of_key(store: Store, connection: Connection, report: str, key: str) -> str | None:
    """The run of the newest generation of this key."""
    run_id: str | None = store.value(connection, _newest_of_key, report=report, key=key)
    return run_id


def _count_download(sql: Sql) -> str:
    return f"UPDATE {sql.generated_reports} SET downloads = downloads + 1 WHERE run_id = :run_id"


def count_download(store: Store, run_id: str) -> None:
    """One more, in its own transaction."""
    with store.begin() as connection:
        store.write(connection, _count_download, run_id=run_id)


# -- writing ----------------------------------------------------------------------------------------------------


def _name_job(sql: Sql) -> str:
    return f"""
    UPDATE {sql.generated_reports} SET job_id = :job_id, updated_at = {sql.now},
        state = CASE WHEN state = 'done' THEN state ELSE 'intended' END
    WHERE run_id = :run_id"""


def name_job(store: Store, connection: Connection, run_id: str, job_id: int) -> None:
    """The newest job of the run; a run that is taken up again is intended again."""
    store.write(connection, _name_job, run_id=run_id, job_id=job_id)


def _settle(sql: Sql) -> str:
    return f"UPDATE {sql.generated_reports} SET state = :state, updated_at = {sql.now} WHERE run_id = :run_id"


def settle(store: Store, connection: Connection, run_id: str, state: str) -> None:
    """The ledger's word on the whole run: refused or abandoned."""
    store.write(connection, _settle, run_id=run_id, state=state)


def _record_artifact(sql: Sql) -> str:
    return f"""
    UPDATE {sql.generated_reports} SET state = 'done', artifact = :artifact, filename = :filename,
        content_type = :content_type, rows = :rows, bytes = :bytes, sha256 = :sha256, updated_at = {sql.now}
    WHERE run_id = :run_id"""


class Artifact(msgspec.Struct, frozen=True, kw_only=True):
    """The finished file."""

    artifact: str
    filename: str
    content_type: str
    rows: int
    bytes: int
    sha256: str


def record_artifact(store: Store, connection: Connection, run_id: str, artifact: Artifact) -> None:
    store.write(connection, _record_artifact, run_id=run_id, **msgspec.structs.asdict(artifact))
