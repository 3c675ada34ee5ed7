"""Who holds up others: the oldest transaction that has locked a table of ours, in words for an operator."""

from __future__ import annotations

from sqlalchemy import text

from effects.store.db.store import Store

_OLDEST = text("""
    SELECT 'connection ' || a.pid || ' (' || concat_ws(', ', a.usename, nullif(a.application_name, ''), a.state)
        || ') has used ' || c.relname || ' for ' || round(date_part('epoch', now() - a.xact_start)) || ' s'
    FROM pg_locks AS l JOIN pg_class AS c ON c.oid = l.relation JOIN pg_stat_activity AS a ON a.pid = l.pid
    WHERE c.relkind = 'r' AND c.relname LIKE 'effects\\_%' AND l.granted AND a.pid <> pg_backend_pid()
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    ORDER BY a.xact_start LIMIT 1""")


def lock_holder(store: Store) -> str:
    """Name it: `connection 4711 (shop, psql, idle in transaction) has used effects_limits for 63 s`."""
    holder = None
    if store.is_postgresql:
        with store.read() as connection:
            holder = connection.scalar(_OLDEST)
    return str(holder or "another transaction")
