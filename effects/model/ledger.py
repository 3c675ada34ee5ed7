"""Ledgers: what the core asks of them, and how the verdicts of an effect's attempts add up to its state.

The fold is written here once as Python (`fold`) and once as the SQL that updates a ledger row in place (`fold_sql`); a
property test holds them equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, get_args

from sqlalchemy import Connection

from effects.model.settlement import Execution, Settlement, Verdict

LedgerState: TypeAlias = Literal["intended", "released", "done", "refused", "unknown", "abandoned"]
Statement: TypeAlias = Callable[[Any], str]  # from the words of a database, `Sql`, to the text of a statement
LEDGER_STATES: tuple[LedgerState, ...] = get_args(LedgerState)


class LedgerRow(NamedTuple):
    """One effect as its ledger has it. `job_id` is the newest job of the effect.

    `job_type` is empty where the ledger serves one type.
    """

    key: str
    state: str
    job_id: int
    job_type: str = ""


class Ledger(Protocol):
    """The interface of a ledger, which writes one batch at a time in the core's transaction.

    Its table has the columns of `ledger_columns`, and any others. `store` is the `Store` of the Effects.
    """

    table: str  # without the prefix
    spans_jobs: bool  # many jobs make one effect, whose state the package sets: no fold over one job's verdicts

    def mark_released(self) -> Statement:
        """The UPDATE for attempts that are about to be released: those in the relation `m` (id, data).

        On PostgreSQL it is a part of the statement that marks their jobs, and always the same function: statements are
        kept by it.
        """
        ...

    def release_data(self, execution: Execution) -> str | None:
        """What the ledger keeps of this attempt when it is released, as a text."""
        ...

    def record(self, store: Any, connection: Connection, settled: Sequence[Settlement]) -> None:
        """Fold these verdicts into the effects' states.

        What `perform` left for this is `Settlement.private`. It is None where an attempt was lost with its worker.
        """
        ...

    def find(self, store: Any, connection: Connection, key: str) -> Sequence[LedgerRow]:
        """The effects that a person may mean by this key, for `effects why`; at most 100."""
        ...

    def parts(self, store: Any, connection: Connection, name: str) -> Sequence[LedgerRow]:
        """All effects that are parts of what this names, such as the deliveries of an event; `find` has the first."""
        ...

    def limit_keys(self, store: Any, connection: Connection, name: str) -> Sequence[str]:
        """The limit keys whose jobs are all about what this names, such as an endpoint; none where it names effects."""
        ...

    def about(self, store: Any, connection: Connection, key: str) -> Mapping[str, str]:
        """What a person must know of the effect of this name to look into it, such as the URL of its endpoint. Nothing
        personal; empty if its job says it all.
        """
        ...

    def holders(self, store: Any, connection: Connection, key: str) -> Sequence[LedgerRow]:
        """The effects whose jobs have exactly this key, at most one a job type; none where many jobs make an effect."""
        ...

    def why_none(self, store: Any, connection: Connection, key: str) -> str | None:
        """Where this package knows the key and it has no effect: words for an operator. None where it is unknown."""
        ...


def advance(state: LedgerState, verdict: Verdict | None, ended: bool) -> LedgerState:
    """The ledger's state after one more attempt."""
    if state == "done" or verdict == "done":
        return "done"
    if state == "unknown" or verdict == "unknown":
        return "unknown"
    if not ended:
        return "intended"
    return "refused" if verdict == "not_done" else "abandoned"


def fold(verdicts: Iterable[Verdict | None], *, ended: bool) -> LedgerState:
    """The state that all attempts of an effect add up to.

    Any done → done; else any released attempt without a verdict → unknown, even if a later repeat was
    refused; else, once the job has ended, refused or abandoned by its last attempt.
    """
    state: LedgerState = "intended"
    last: Verdict | None = None
    for last in verdicts:
        state = advance(state, last, ended=False)
    return advance(state, last, ended=True) if ended else state


def fold_sql(state: str, verdict: str, ended: str) -> str:
    """`advance` as a SQL expression over three SQL expressions."""
    return (
        f"CASE WHEN {state} = 'done' OR {verdict} = 'done' THEN 'done' "
        f"WHEN {state} = 'unknown' OR {verdict} = 'unknown' THEN 'unknown' "
        f"WHEN NOT {ended} THEN 'intended' "
        f"WHEN {verdict} = 'not_done' THEN 'refused' ELSE 'abandoned' END"
    )
