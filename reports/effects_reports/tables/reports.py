"""Reading `generated_reports`, and the runs for lists."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from sqlalchemy import Connection

from effects.store.sql import Sql
from effects.store.store import Store, as_json


class Generated(msgspec.Struct, frozen=True, kw_only=True):
    """One run's row in the ledger; what concerns its file is None until it is ready."""

    run_id: str
    report: str
    key: str
    generation: int
    state: str
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
    found = store.all(connection, _generated, ids=as_json(list(run_ids)))
    return {row.run_id: Generated(**row._mapping) for row in found}


def _count_download(sql: Sql) -> str:
    return f"UPDATE {sql.generated_reports} SET downloads = downloads + 1 WHERE run_id = :run_id"


def count_download(store: Store, run_id: str) -> None:
    """One more, in a transaction of its own."""
    with store.begin() as connection:
        store.write(connection, _count_download, run_id=run_id)


def _newest_ids(sql: Sql) -> str:
    wanted = " AND ".join(
        f"(CAST(:{name} AS text) IS NULL OR {name} = CAST(:{name} AS text))" for name in ("report", "state")
    )
    return f"SELECT id FROM {sql.report_runs} WHERE {wanted} ORDER BY id DESC LIMIT :limit"


def newest_ids(store: Store, connection: Connection, report: str | None, state: str | None, limit: int) -> list[str]:
    """The newest runs: ids rise with the time of making."""
    return [row.id for row in store.all(connection, _newest_ids, report=report, state=state, limit=limit)]
