"""The ledger's fold, twice written: as Python over a list, as SQL over a row. They must never differ."""

from __future__ import annotations

import itertools
import sqlite3
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from effects.model.ledger import advance, fold, fold_sql
from effects.model.settlement import Verdict

STATES = ["intended", "released", "done", "refused", "unknown", "abandoned"]
VERDICTS: list[Verdict | None] = ["done", "not_done", "unknown", None]
verdicts = st.lists(st.sampled_from(VERDICTS), max_size=12)


@pytest.mark.parametrize(
    ("state", "verdict", "ended"), list(itertools.product(STATES, VERDICTS, [False, True])), ids=str
)
def test_the_sql_equals_the_python(state: Any, verdict: Any, ended: bool) -> None:
    connection = sqlite3.connect(":memory:")
    row = connection.execute(f"SELECT {fold_sql(':state', ':verdict', ':ended')}", vars_of(state, verdict, ended))
    assert row.fetchone()[0] == advance(state, verdict, ended)
    connection.close()


def vars_of(state: str, verdict: str | None, ended: bool) -> dict[str, Any]:
    return {"state": state, "verdict": verdict, "ended": ended}


@given(verdicts, st.booleans())
def test_any_done_is_done(said: list[Any], ended: bool) -> None:
    assert (fold(said, ended=ended) == "done") == ("done" in said)


@given(verdicts, st.booleans())
def test_an_unknown_without_a_done_stays_unknown(said: list[Any], ended: bool) -> None:
    if "done" not in said:
        assert (fold(said, ended=ended) == "unknown") == ("unknown" in said)


@given(verdicts)
def test_only_an_end_refuses_or_abandons(said: list[Any]) -> None:
    assert fold(said, ended=False) in ("intended", "done", "unknown")
    assert fold(said, ended=True) != "intended"


@given(verdicts, st.booleans(), st.randoms())
def test_the_order_matters_only_for_the_last_refusal(said: list[Any], ended: bool, random: Any) -> None:
    shuffled = random.sample(said, len(said))
    first, second = fold(said, ended=ended), fold(shuffled, ended=ended)
    assert first == second or {first, second} <= {"refused", "abandoned"}


@given(verdicts, verdicts, st.booleans())
def test_a_fold_can_be_continued(before: list[Any], after: list[Any], ended: bool) -> None:
    state = fold(before, ended=False)
    last: Verdict | None = before[-1] if before else None
    for last in after:
        state = advance(state, last, ended=False)
    assert (advance(state, last, ended=True) if ended else state) == fold(before + after, ended=ended)
