"""Signed webhooks: an event, written in your own transaction, reaches every endpoint that wants it."""

from typing import TYPE_CHECKING

from effects.extend import lazy

if TYPE_CHECKING:
    from effects.extend import SecretInvalid, SignatureInvalid, generate_secret, sign, verify
    from effects_webhooks.admin.adding import EnsuredEndpoint, NewEndpoint, add_endpoint, ensure_endpoint
    from effects_webhooks.admin.deliveries import (
        DeliveryPage,
        DeliverySummary,
        EventDetail,
        EventSummary,
        get_delivery,
        get_event,
        list_deliveries,
        list_events,
    )
    from effects_webhooks.admin.endpoints import (
        Endpoint,
        change_endpoint,
        disable_endpoint,
        enable_endpoint,
        get_endpoint,
        list_endpoints,
    )
    from effects_webhooks.admin.replay import Replayed, recover, replay_delivery, replay_event
    from effects_webhooks.admin.rotation import NewSecret, SecretInfo, expire_secret, list_secrets, rotate_secret
    from effects_webhooks.admin.withdrawal import cancel_delivery
    from effects_webhooks.api import deliver_webhook, deliver_webhooks, send_test
    from effects_webhooks.async_api import deliver_webhook_async, deliver_webhooks_async
    from effects_webhooks.errors import (
        EndpointInvalid,
        EndpointNotFound,
        EventInvalid,
        EventNotFound,
    )
    from effects_webhooks.event_types import EventType
    from effects_webhooks.explanation import DeliveryExplanation, explain
    from effects_webhooks.jobs.deliver import WebhookDelivery
    from effects_webhooks.request import WebhookEvent
    from effects_webhooks.tenants import ANY_TENANT, Tenant
    from effects_webhooks.writing import Delivery, WebhookReceipt, delivery_key
else:
    __getattr__, __dir__ = lazy.names(
        __name__,
        {
            "effects.extend": "SecretInvalid, SignatureInvalid, generate_secret, sign, verify",
            "effects_webhooks.admin.adding": "EnsuredEndpoint, NewEndpoint, add_endpoint, ensure_endpoint",
            "effects_webhooks.admin.deliveries": (
                "DeliveryPage, DeliverySummary, EventDetail, EventSummary, get_delivery, get_event, list_deliveries, "
                "list_events"
            ),
            "effects_webhooks.admin.endpoints": (
                "Endpoint, change_endpoint, disable_endpoint, enable_endpoint, get_endpoint, list_endpoints"
            ),
            "effects_webhooks.admin.replay": "Replayed, recover, replay_delivery, replay_event",
            "effects_webhooks.admin.rotation": "NewSecret, SecretInfo, expire_secret, list_secrets, rotate_secret",
            "effects_webhooks.admin.withdrawal": "cancel_delivery",
            "effects_webhooks.api": "deliver_webhook, deliver_webhooks, send_test",
            "effects_webhooks.async_api": "deliver_webhook_async, deliver_webhooks_async",
            "effects_webhooks.errors": "EndpointInvalid, EndpointNotFound, EventInvalid, EventNotFound",
            "effects_webhooks.event_types": "EventType",
            "effects_webhooks.explanation": "DeliveryExplanation, explain",
            "effects_webhooks.jobs.deliver": "WebhookDelivery",
            "effects_webhooks.request": "WebhookEvent",
            "effects_webhooks.tenants": "ANY_TENANT, Tenant",
            "effects_webhooks.writing": "Delivery, WebhookReceipt, delivery_key",
        },
    )

__all__ = [
    "ANY_TENANT",
    "Delivery",
    "DeliveryExplanation",
    "DeliveryPage",
    "DeliverySummary",
    "Endpoint",
    "EndpointInvalid",
    "EndpointNotFound",
    "EnsuredEndpoint",
    "EventDetail",
    "EventInvalid",
    "EventNotFound",
    "EventSummary",
    "EventType",
    "NewEndpoint",
    "NewSecret",
    "Replayed",
    "SecretInfo",
    "SecretInvalid",
    "SignatureInvalid",
    "Tenant",
    "WebhookDelivery",
    "WebhookEvent",
    "WebhookReceipt",
    "add_endpoint",
    "cancel_delivery",
    "change_endpoint",
    "deliver_webhook",
    "deliver_webhook_async",
    "deliver_webhooks",
    "deliver_webhooks_async",
    "delivery_key",
    "disable_endpoint",
    "enable_endpoint",
    "ensure_endpoint",
    "expire_secret",
    "explain",
    "generate_secret",
    "get_delivery",
    "get_endpoint",
    "get_event",
    "list_deliveries",
    "list_endpoints",
    "list_events",
    "list_secrets",
    "recover",
    "replay_delivery",
    "replay_event",
    "rotate_secret",
    "send_test",
    "sign",
    "verify",
]
