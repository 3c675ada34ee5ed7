"""A package's ledger: one row for each effect, written once for its key.

Names without their own docstring:

    LEDGER_STATES    the states of an effect
    NO_DIGEST        the digest of a holder that is another one whatever its content
"""

from __future__ import annotations

from effects.kit import lazy

with lazy.names(__name__):
    from effects.model.ledger import LEDGER_STATES as LEDGER_STATES
    from effects.model.ledger import LedgerRow as LedgerRow
    from effects.model.ledger import fold_sql as fold_sql
    from effects.store.idempotence import NO_DIGEST as NO_DIGEST
    from effects.store.idempotence import IdempotentWriter as IdempotentWriter
    from effects.store.idempotence import KeyHolder as KeyHolder
    from effects.store.idempotence import write_once as write_once
    from effects.store.queue.table_ledger import TableLedger as TableLedger
