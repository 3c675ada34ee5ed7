"""Withdrawing a delivery that is no longer wanted."""

from __future__ import annotations

from effects import CancelResult, Effects, cancel
from effects.extend import AnySession, app_of, arguments
from effects_webhooks.errors import EventInvalid, EventNotFound
from effects_webhooks.tables import replay as table
from effects_webhooks.tenants import Tenant, tenant_filter
from effects_webhooks.writing import JOB_TYPE, delivery_key


@arguments.checked(EventInvalid, event_id=arguments.NAME, endpoint_id=arguments.NAME, **arguments.ACTING)
def cancel_delivery(
    event_id: str,
    endpoint_id: str,
    *,
    actor: str,
    reason: str | None = None,
    tenant: Tenant = None,
    session: AnySession | None = None,
    effects: Effects | None = None,
) -> CancelResult:
    """Withdraw the delivery of one event to one endpoint; see `effects.cancel`.

    A delivery that a worker has claimed may be under way to the partner: it is `released`, not prevented.

    Args:
        event_id: of the event: `msg_…`.
        endpoint_id: of the endpoint: `ep_…`.
        actor, reason, session: as for `effects.cancel`.
        tenant: the tenant of event and endpoint; others are not found. Default: no tenant. `ANY_TENANT`: any.

    Returns:
        What it came to; true with the commit. A crash before that leaves nothing; calling again is safe.

    Raises:
        EventNotFound: there is no such delivery. For an event that more than 100 unordered endpoints want, a job makes
            theirs.
        StoreUnavailable: the database is unavailable (without `session`).
    """
    app = app_of(effects, session)
    owner = tenant_filter(tenant)
    key = delivery_key(event_id, endpoint_id)
    with app.writing(session) as connection:
        if table.delivery(app.store, connection, event_id, endpoint_id, owner) is None:
            raise EventNotFound(f"there is no delivery {key}")
        return cancel(key=key, job_type=JOB_TYPE, actor=actor, reason=reason, session=connection, effects=app)
