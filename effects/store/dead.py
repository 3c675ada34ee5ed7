"""Dead letters and unknown outcomes: what waits for a person."""

from __future__ import annotations

from effects.store.actions import CLOSING
from effects.store.sql import Sql


def closed(sql: Sql, seconds: str = "0") -> str:
    """Whether somebody closed the ended job `h`, at least `seconds` ago."""
    words = ", ".join(f"'{word}'" for word in CLOSING)
    return f"""EXISTS (SELECT 1 FROM {sql.job_actions} AS a WHERE a.job_id = h.id AND a.action IN ({words})
        AND {sql.seconds("a.created_at")} >= {seconds})"""


def is_unknown(sql: Sql, tables: tuple[str, ...]) -> str:
    """Whether the effect of the ended job `h` may have happened; without a ledger row its own attempts say so."""
    ledgers = " OR ".join(
        f"EXISTS (SELECT 1 FROM {getattr(sql, table)} AS l WHERE l.job_id = h.id AND l.state = 'unknown')"
        for table in tables
    )
    return f"(h.idempotency_key IS NULL AND h.unknown_count > 0 OR {ledgers})"
