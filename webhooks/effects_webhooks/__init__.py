"""Signed webhooks: an event, written in your own transaction, reaches every endpoint that wants it."""

from effects.extend.process import lazy

with lazy.names(__name__):
    from effects.extend.secrets import SecretInvalid as SecretInvalid
    from effects.extend.secrets import SignatureInvalid as SignatureInvalid
    from effects.extend.secrets import generate_secret as generate_secret
    from effects.extend.secrets import sign as sign
    from effects.extend.secrets import verify as verify
    from effects_webhooks.admin.adding import EnsuredEndpoint as EnsuredEndpoint
    from effects_webhooks.admin.adding import NewEndpoint as NewEndpoint
    from effects_webhooks.admin.adding import add_endpoint as add_endpoint
    from effects_webhooks.admin.adding import ensure_endpoint as ensure_endpoint
    from effects_webhooks.admin.deliveries import DeliveryPage as DeliveryPage
    from effects_webhooks.admin.deliveries import DeliverySummary as DeliverySummary
    from effects_webhooks.admin.deliveries import EventDetail as EventDetail
    from effects_webhooks.admin.deliveries import EventSummary as EventSummary
    from effects_webhooks.admin.deliveries import Replayed as Replayed
    from effects_webhooks.admin.deliveries import cancel_delivery as cancel_delivery
    from effects_webhooks.admin.deliveries import get_delivery as get_delivery
    from effects_webhooks.admin.deliveries import get_event as get_event
    from effects_webhooks.admin.deliveries import list_deliveries as list_deliveries
    from effects_webhooks.admin.deliveries import list_events as list_events
    from effects_webhooks.admin.deliveries import recover as recover
    from effects_webhooks.admin.deliveries import replay_delivery as replay_delivery
    from effects_webhooks.admin.deliveries import replay_event as replay_event
    from effects_webhooks.admin.endpoints import Endpoint as Endpoint
    from effects_webhooks.admin.endpoints import change_endpoint as change_endpoint
    from effects_webhooks.admin.endpoints import disable_endpoint as disable_endpoint
    from effects_webhooks.admin.endpoints import enable_endpoint as enable_endpoint
    from effects_webhooks.admin.endpoints import get_endpoint as get_endpoint
    from effects_webhooks.admin.endpoints import list_endpoints as list_endpoints
    from effects_webhooks.admin.rotation import NewSecret as NewSecret
    from effects_webhooks.admin.rotation import SecretInfo as SecretInfo
    from effects_webhooks.admin.rotation import expire_secret as expire_secret
    from effects_webhooks.admin.rotation import list_secrets as list_secrets
    from effects_webhooks.admin.rotation import rotate_secret as rotate_secret
    from effects_webhooks.api import deliver_webhook as deliver_webhook
    from effects_webhooks.api import deliver_webhook_async as deliver_webhook_async
    from effects_webhooks.api import deliver_webhooks as deliver_webhooks
    from effects_webhooks.api import deliver_webhooks_async as deliver_webhooks_async
    from effects_webhooks.api import send_test as send_test
    from effects_webhooks.classify import DeliveryExplanation as DeliveryExplanation
    from effects_webhooks.classify import explain as explain
    from effects_webhooks.errors import EndpointInvalid as EndpointInvalid
    from effects_webhooks.errors import EndpointNotFound as EndpointNotFound
    from effects_webhooks.errors import EventInvalid as EventInvalid
    from effects_webhooks.errors import EventNotFound as EventNotFound
    from effects_webhooks.jobs import WebhookDelivery as WebhookDelivery
    from effects_webhooks.request import EventType as EventType
    from effects_webhooks.request import WebhookEvent as WebhookEvent
    from effects_webhooks.tenants import ANY_TENANT as ANY_TENANT
    from effects_webhooks.tenants import Tenant as Tenant
    from effects_webhooks.writing import Delivery as Delivery
    from effects_webhooks.writing import WebhookReceipt as WebhookReceipt
    from effects_webhooks.writing import delivery_key as delivery_key
