"""What this package raises beside the core's errors; the tree in `effects.errors` has their parents.

EffectsError
├─ EndpointNotFound      an operator named an endpoint, or a secret, that is not there
├─ EventNotFound         an operator named an event, or a delivery, that is not there
└─ EnqueueError
    ├─ EventInvalid      a WebhookEvent that cannot be sent as given
    └─ EndpointInvalid   an address or a pattern that no endpoint may have
"""

from __future__ import annotations

from effects import EffectsError, EnqueueError


class EventInvalid(EnqueueError):
    """The event cannot be sent as given."""


class EndpointInvalid(EnqueueError):
    """The endpoint cannot be added as given."""


class EndpointNotFound(EffectsError):
    """There is no such endpoint."""

    listed_by = "effects webhooks endpoints list"


class EventNotFound(EffectsError):
    """There is no such event, or it has no such delivery."""

    listed_by = "effects webhooks events"


def no_endpoint(endpoint_id: str) -> EndpointNotFound:
    """The error for an id that no endpoint has, or that one of another tenant has."""
    return EndpointNotFound(f"there is no endpoint {endpoint_id!r}")
