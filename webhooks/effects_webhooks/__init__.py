"""Signed webhooks: an event, written in your own transaction, reaches every endpoint that wants it."""

from effects.errors import SecretInvalid, SignatureInvalid
from effects.signing import generate_secret, sign, verify
from effects_webhooks.api import WebhookReceipt, deliver_webhook, deliver_webhooks, send_test
from effects_webhooks.deliveries import Delivery
from effects_webhooks.endpoints import (
    Endpoint,
    NewEndpoint,
    add_endpoint,
    change_endpoint,
    disable_endpoint,
    enable_endpoint,
    get_endpoint,
    list_endpoints,
)
from effects_webhooks.errors import (
    EndpointInvalid,
    EndpointNotFound,
    EventInvalid,
    EventNotFound,
)
from effects_webhooks.event import WebhookEvent
from effects_webhooks.explanation import Explanation, explain
from effects_webhooks.job import WebhookDelivery
from effects_webhooks.replay import Replayed, recover, replay_delivery, replay_event
from effects_webhooks.rotation import NewSecret, SecretInfo, expire_secret, list_secrets, rotate_secret

__all__ = [
    "Delivery",
    "Endpoint",
    "EndpointInvalid",
    "EndpointNotFound",
    "EventInvalid",
    "EventNotFound",
    "Explanation",
    "NewEndpoint",
    "NewSecret",
    "Replayed",
    "SecretInfo",
    "SecretInvalid",
    "SignatureInvalid",
    "WebhookDelivery",
    "WebhookEvent",
    "WebhookReceipt",
    "add_endpoint",
    "change_endpoint",
    "deliver_webhook",
    "deliver_webhooks",
    "disable_endpoint",
    "enable_endpoint",
    "expire_secret",
    "explain",
    "generate_secret",
    "get_endpoint",
    "list_endpoints",
    "list_secrets",
    "recover",
    "replay_delivery",
    "replay_event",
    "rotate_secret",
    "send_test",
    "sign",
    "verify",
]
