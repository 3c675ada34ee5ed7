"""Statements for both databases, and the sessions of callers.

Names without their own docstring:

    ANY_TIME           a `Window` without bounds
    AnyAsyncSession    an AsyncSession, a scoped one or an AsyncConnection, as the awaitable calls take it
    AnySession         what the calls take as `session=`: of SQLAlchemy, of a driver, of Django
    Statement          a function from `Sql` to the text of a statement
"""

from __future__ import annotations

from effects.kit import lazy

with lazy.names(__name__):
    from effects.app.default import in_async as in_async
    from effects.kit.text.database_error import database_condition as database_condition
    from effects.kit.text.database_error import is_wrong_statement as is_wrong_statement
    from effects.kit.text.database_error import primary_message as primary_message
    from effects.store.db.engine import create_engine as create_engine
    from effects.store.db.faults import may_pass as may_pass
    from effects.store.db.sql import ANY_TIME as ANY_TIME
    from effects.store.db.sql import Sql as Sql
    from effects.store.db.sql import Window as Window
    from effects.store.db.sql import and_each as and_each
    from effects.store.db.sql import columns_of as columns_of
    from effects.store.db.sql import set_filters as set_filters
    from effects.store.db.store import Statement as Statement
    from effects.store.db.store import Store as Store
    from effects.store.db.store import as_json as as_json
    from effects.store.sessions.asynchronous import AnyAsyncSession as AnyAsyncSession
    from effects.store.sessions.joining import AnySession as AnySession
    from effects.store.sessions.joining import commits_alone as commits_alone
