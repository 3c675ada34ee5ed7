"""What a person may do with endpoints, deliveries and events: the functions of the commands."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from effects.web import ActionCall, ActionEnd, ActionField, PageAction, Visit
from effects_webhooks.admin.endpoints import disable_endpoint, enable_endpoint
from effects_webhooks.admin.replay import recover, replay_delivery, replay_event
from effects_webhooks.api import send_test
from effects_webhooks.errors import EventNotFound
from effects_webhooks.tenants import ANY_TENANT

RECOVER_MAX = 200  # in one request
_SINCE = {"1 hour": 1, "6 hours": 6, "1 day": 24, "3 days": 72, "7 days": 168}
_EVEN_IF_DONE = ActionField(
    "even_if_done", "Also those that were answered with 2xx: they arrive a second time", "tick", role="admin"
)


def _disable(call: ActionCall) -> None:
    disable_endpoint(call.subject, actor=call.actor, reason=call.reason, tenant=ANY_TENANT, effects=call.visit.app)


def _enable(call: ActionCall) -> None:
    enable_endpoint(call.subject, actor=call.actor, reason=call.reason, tenant=ANY_TENANT, effects=call.visit.app)


def _test(call: ActionCall) -> ActionEnd:
    receipt = send_test(call.subject, actor=call.actor, reason=call.reason, tenant=ANY_TENANT, effects=call.visit.app)
    return ActionEnd(call.visit.url("webhooks_delivery", event=receipt.event_id, endpoint=call.subject))


def _recover(call: ActionCall) -> ActionEnd:
    since = datetime.now(UTC) - timedelta(hours=_SINCE[call.fields["since"]])
    replayed = recover(
        call.subject, since=since, limit=RECOVER_MAX, actor=call.actor, reason=call.reason, tenant=ANY_TENANT,
        effects=call.visit.app,
    )  # fmt: skip
    return ActionEnd(count=len(replayed.jobs))


def _replay_delivery(call: ActionCall) -> ActionEnd:
    event_id, _, endpoint_id = call.subject.partition(":")
    replay_delivery(
        event_id, endpoint_id, confirm_done=call.fields["even_if_done"] == "yes", actor=call.actor, reason=call.reason,
        tenant=ANY_TENANT, effects=call.visit.app,
    )  # fmt: skip
    return ActionEnd(call.visit.url("webhooks_delivery", event=event_id, endpoint=endpoint_id))


def _replay_event(call: ActionCall) -> ActionEnd:
    replayed = replay_event(
        call.subject, confirm_done=call.fields["even_if_done"] == "yes", actor=call.actor, reason=call.reason,
        tenant=ANY_TENANT, effects=call.visit.app,
    )  # fmt: skip
    return ActionEnd(count=len(replayed.jobs))


def _to_endpoint(visit: Visit, name: str) -> str:
    return visit.url("webhooks_endpoint", endpoint=name)


def _to_event(visit: Visit, name: str) -> str:
    return visit.url("webhooks_event", event=name)


def _to_delivery(visit: Visit, name: str) -> str:
    event_id, colon, endpoint_id = name.partition(":")
    if not colon:
        raise EventNotFound("a delivery is named msg_…:ep_…")
    return visit.url("webhooks_delivery", event=event_id, endpoint=endpoint_id)


ACTIONS = (
    PageAction("webhooks_disable", "/webhooks/endpoints/disable", "endpoint", "operator", "Disable",
               "Nothing more is sent to it: new events pass it by, and what waits ends cancelled when it falls due. To "
               "hold deliveries back without losing them, pause its limit key.", "The endpoint is disabled.", _disable,
               _to_endpoint, danger=True),
    PageAction("webhooks_enable", "/webhooks/endpoints/enable", "endpoint", "operator", "Enable",
               "Deliveries go on at once: its failures are cleared, its breaker closes, its pause ends. What was "
               "cancelled meanwhile stays cancelled; recover sends it again.", "The endpoint is enabled.", _enable,
               _to_endpoint),
    PageAction("webhooks_test", "/webhooks/endpoints/test", "endpoint", "operator", "Send a test",
               "An event of the type webhook.test is sent to it, signed like any other.",
               "The test is on its way: this page follows it.", _test, _to_endpoint),
    PageAction("webhooks_recover", "/webhooks/endpoints/recover", "endpoint", "operator", "Recover",
               "What ended without success is sent again with the same id and bytes, oldest first, at most 200 "
               "deliveries at a time. What is still retrying is left alone.",
               "{n} deliveries are sent again. Were it 200, there may be more: recover once more.", _recover,
               _to_endpoint, fields=(ActionField("since", "What ended in the last", "choice", tuple(_SINCE)),)),
    PageAction("webhooks_replay", "/webhooks/deliveries/replay", "delivery", "operator", "Send again",
               "The same event with the same webhook-id and the same bytes: a receiver that knows the id drops it.",
               "It is sent again.", _replay_delivery, _to_delivery, fields=(_EVEN_IF_DONE,)),
    PageAction("webhooks_replay_event", "/webhooks/events/replay", "event", "operator", "Send again to all",
               "Each ended delivery of the event is sent again, with the same id and bytes. What waits is left alone.",
               "{n} deliveries are sent again.", _replay_event, _to_event, fields=(_EVEN_IF_DONE,)),
)  # fmt: skip
