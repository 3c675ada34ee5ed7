"""What this package raises beside the core's errors; the tree in `effects.errors` has their parents.

EffectsError
├─ SignatureInvalid      a request that is not what its sender signed; the only error of `verify`
│   └─ SecretInvalid     the secret itself cannot be used
├─ EndpointNotFound      an operator named an endpoint, or a secret, that is not there
├─ EventNotFound         an operator named an event, or a delivery, that is not there
└─ EnqueueError
    ├─ EventInvalid      a WebhookEvent that cannot be sent as given
    └─ EndpointInvalid   an address or a pattern that no endpoint may have
"""

from __future__ import annotations

from effects.errors import EffectsError, EnqueueError


class SignatureInvalid(EffectsError):
    """The signature does not fit the request."""


class SecretInvalid(SignatureInvalid):
    """A secret is `whsec_` and the base64 text of 24 to 64 bytes."""


class EventInvalid(EnqueueError):
    """The event cannot be sent as given."""


class EndpointInvalid(EnqueueError):
    """The endpoint cannot be added as given."""


class EndpointNotFound(EffectsError):
    """There is no such endpoint."""


class EventNotFound(EffectsError):
    """There is no such event, or it has no such delivery."""
