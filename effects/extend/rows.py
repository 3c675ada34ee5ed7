"""Columns, constraints and indexes of a package's tables; deleting rows past their retention.

Names without their own docstring:

    Identity, Json    column types: an ascending id, and JSON
"""

from __future__ import annotations

from effects.kit import lazy

with lazy.names(__name__):
    from effects.store.db.records import record as record
    from effects.store.db.walk import Page as Page
    from effects.store.db.walk import delete_page as delete_page
    from effects.store.db.walk import old_rows as old_rows
    from effects.store.db.walk import walk as walk
    from effects.store.migrations.migrate import create_index_online as create_index_online
    from effects.store.schema.columns import DatabaseNow as DatabaseNow
    from effects.store.schema.columns import Identity as Identity
    from effects.store.schema.columns import Json as Json
    from effects.store.schema.columns import UtcTime as UtcTime
    from effects.store.schema.columns import check_json as check_json
    from effects.store.schema.columns import ledger_columns as ledger_columns
    from effects.store.schema.columns import now_column as now_column
