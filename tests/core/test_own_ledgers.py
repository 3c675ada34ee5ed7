"""A job with a key whose type has a ledger of its own: its effect is in that ledger, or the job is refused."""

from __future__ import annotations

import json

import pytest

from effects import Effects, EnqueueError, enqueue, status
from effects.operate.tables.audit import audit
from effects.worker import Worker
from tests.support.manual_workers import rows

PAYLOAD = json.dumps({"event_id": "msg_1", "endpoint_id": "ep_1"})


def test_a_type_with_its_own_ledger_is_not_enqueued_directly(app: Effects) -> None:
    with pytest.raises(EnqueueError, match=r"webhook\.deliver with a key: .* a ledger of its own"):
        enqueue("webhook.deliver", json.loads(PAYLOAD), key="k", effects=app)
    assert rows(app, "jobs") == rows(app, "effect_ledger") == []


def test_a_plain_insert_past_the_ledger_is_refused_with_its_reason(app: Effects) -> None:
    """Else its outcome would be folded into a ledger where it is not, and be intended in the core's forever."""
    statement = (
        f"INSERT INTO effects_jobs (job_type, payload, idempotency_key) VALUES ('webhook.deliver', '{PAYLOAD}', 'k')"
    )
    with app.engine.begin() as connection:
        connection.exec_driver_sql(statement)
    Worker(app).drain(60)
    effect = status(key="k", effects=app)
    assert (effect.state, effect.status, effect.error_code) == ("refused", "dead", "no_intent")
    assert audit(app.store, app.ledgers) == []
