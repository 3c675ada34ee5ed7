"""A payload goes through the database and comes back the same, whichever database it is."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from effects import Effects, JobType, enqueue
from tests.conftest import AppFactory
from tests.support.manual_workers import ManualWorker, run_sql

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)
# A float beyond 2**53 has no fraction left, and PostgreSQL's jsonb gives it back as an integer.
numbers = st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats(-1e15, 1e15))
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, texts),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=12,
)
payloads = st.dictionaries(texts, values, max_size=5)


class Anything(JobType[dict[str, Any]]):
    name = "anything"

    def perform(self, payload: dict[str, Any], attempt: Any) -> None:
        """Nothing is to be done here."""


@given(payloads)
def test_text_and_back(payload: dict[str, Any]) -> None:
    assert Anything().decode(Anything().encode(payload)) == payload


@given(payloads, st.randoms())
def test_the_canonical_text_is_one_for_all_orders(payload: dict[str, Any], random: Any) -> None:
    shuffled = dict(random.sample(sorted(payload.items()), len(payload)))
    job_type = Anything()
    assert job_type.canonical(job_type.encode(payload)) == job_type.canonical(job_type.encode(shuffled))


def test_through_the_database_and_back(app_factory: AppFactory) -> None:
    app = app_factory(job_types=[Anything()])
    manual_worker = ManualWorker(app)

    @settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(payloads)
    def round_trip(payload: dict[str, Any]) -> None:
        assert travelled(app, manual_worker, payload) == payload

    round_trip()


def travelled(app: Effects, manual_worker: ManualWorker, payload: dict[str, Any]) -> Any:
    """What a worker gets of it."""
    run_sql(app, "DELETE FROM effects_jobs")
    run_sql(app, "DELETE FROM effects_effect_ledger")
    first = enqueue("anything", payload, key="k", effects=app)
    assert enqueue("anything", payload, key="k", effects=app).job_id == first.job_id
    job = manual_worker.claim_one()
    return app.job_types.get("anything").decode(job.payload)
