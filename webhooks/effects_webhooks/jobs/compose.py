"""The job type `webhook.compose`: an event from those who can only name a job type and a payload.

A finished report, an alert, a schedule or a plain INSERT enqueues it; `webhook.deliver` then sends the event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import Connection

from effects import Attempt, Done, EffectsError, EnqueueError, Job, JobType, Outcome, Refused
from effects.extend import record_existing
from effects_webhooks.api import deliver_webhook
from effects_webhooks.request import WebhookEvent
from effects_webhooks.state import state_of

if TYPE_CHECKING:
    from effects import Effects

COMPOSE_TYPE = "webhook.compose"


class WebhookComposePayload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """As the fields of `WebhookEvent`."""

    type: str
    data: dict[str, Any] = {}
    key: str | None = None
    tenant: str | None = None
    ordering_key: str | None = None


class WebhookCompose(JobType[WebhookComposePayload]):
    """Writes the event and its deliveries, in the transaction that records this job as done."""

    name = COMPOSE_TYPE
    payload = WebhookComposePayload
    queue = "webhooks"

    def __init__(self, app: Effects) -> None:
        self._app = app

    def check_declared(self, payload: WebhookComposePayload) -> None:
        state_of(self._app).event_types.check(payload.type)
        WebhookEvent(**msgspec.structs.asdict(payload))

    async def perform(self, payload: WebhookComposePayload, attempt: Attempt) -> Outcome:
        try:
            event = WebhookEvent(**msgspec.structs.asdict(payload))
        except EnqueueError as error:  # neither quotes the data
            return _refused(error)
        return Done(apply=lambda connection: self._write(connection, event, attempt.job))

    def _write(self, connection: Connection, event: WebhookEvent, job: Job) -> None:
        try:
            receipt = deliver_webhook(event, session=connection, effects=self._app)
        except EnqueueError as error:  # the key has other content
            raise _refused(error) from None
        if receipt.existing:
            record_existing(self._app.store, connection, job, f"the event {receipt.event_id} of the key {event.key!r}")


def _refused(error: EffectsError) -> Refused:
    return Refused(str(error), code=type(error).__name__)
