"""Signed webhooks: an event, written in your own transaction, reaches every endpoint that wants it."""

from effects_webhooks.api import Delivery, WebhookReceipt, deliver_webhook, deliver_webhooks
from effects_webhooks.endpoints import (
    Endpoint,
    NewEndpoint,
    add_endpoint,
    disable_endpoint,
    enable_endpoint,
    get_endpoint,
    list_endpoints,
)
from effects_webhooks.errors import (
    EndpointInvalid,
    EndpointNotFound,
    EventInvalid,
    SecretInvalid,
    SignatureInvalid,
)
from effects_webhooks.event import WebhookEvent
from effects_webhooks.job import WebhookDelivery
from effects_webhooks.signing import generate_secret, sign, verify

__all__ = [
    "Delivery",
    "Endpoint",
    "EndpointInvalid",
    "EndpointNotFound",
    "EventInvalid",
    "NewEndpoint",
    "SecretInvalid",
    "SignatureInvalid",
    "WebhookDelivery",
    "WebhookEvent",
    "WebhookReceipt",
    "add_endpoint",
    "deliver_webhook",
    "deliver_webhooks",
    "disable_endpoint",
    "enable_endpoint",
    "generate_secret",
    "get_endpoint",
    "list_endpoints",
    "sign",
    "verify",
]
