"""Every error that effects raises, divided by what can be done about it.

    EffectsError
    ├─ ConfigurationError        a setting or a registration is wrong: raised at start, names it
    │   ├─ SchemaMismatch        the database is not the one this version knows; says what to run
    │   ├─ UnknownJobType
    │   └─ KeyUnavailable        a sealed value needs a key that EFFECTS_KEYS does not hold
    ├─ EnqueueError              the caller's own input is wrong: nothing was written
    │   ├─ PayloadInvalid
    │   └─ IdempotencyConflict   the same key came with another payload
    ├─ JobNotFound               an operator named a job that is not there, or not in that state
    ├─ LimitNotFound             an operator named a limit key that has no limits
    ├─ SignatureInvalid          a request that is not what its sender signed; see `effects.signing`
    │   └─ SecretInvalid         the secret itself cannot be used
    ├─ LeaseLost                 this attempt no longer owns its job: do nothing more
    ├─ StoreUnavailable          the database is away; nothing is known about the last statement
    └─ DeliveryError             what a handler may raise about its peer; the subclass is the fate
        ├─ Temporary             not done; may succeed later
        │   └─ StorageUnavailable   files cannot be reached now
        ├─ Permanent             not done; will not succeed
        │   └─ ObjectMissing        there is no file of this name
        ├─ Refused               our own guard said no: nothing was sent
        │   └─ StorageRefused       files cannot be kept: permission, space, no such bucket
        └─ Ambiguous             it may have happened

A docstring is the default message. No message ever holds a payload, a header, a body or a URL's query.
"""

from __future__ import annotations


class EffectsError(Exception):
    """Something in effects went wrong."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (self.__doc__ or "").strip())


class ConfigurationError(EffectsError):
    """A setting or a registration is wrong."""


class SchemaMismatch(ConfigurationError):
    """The database does not hold the tables of this version: run `effects init`."""


class UnknownJobType(ConfigurationError):
    """No job type of this name is registered."""


class KeyUnavailable(ConfigurationError):
    """A sealed value cannot be opened: its key is not in EFFECTS_KEYS, or the value was altered."""


class EnqueueError(EffectsError):
    """The job cannot be accepted as given; nothing was written."""


class PayloadInvalid(EnqueueError):
    """The payload does not fit its job type."""


class IdempotencyConflict(EnqueueError):
    """This idempotency key was used before with another payload."""

    def __init__(self, message: str | None = None, *, job_id: int | None = None) -> None:
        super().__init__(message)
        self.job_id = job_id  # the job that holds the key


class JobNotFound(EffectsError):
    """There is no such job in that state."""


class LimitNotFound(EffectsError):
    """There are no limits for this key."""


class SignatureInvalid(EffectsError):
    """The signature does not fit the request."""


class SecretInvalid(SignatureInvalid):
    """A secret is `whsec_` and the base64 text of 24 to 64 bytes."""


class LeaseLost(EffectsError):
    """This attempt no longer owns its job."""


class StoreUnavailable(EffectsError):
    """The database cannot be reached."""


class DeliveryError(EffectsError):
    """The effect did not succeed."""

    def __init__(self, message: str | None = None, *, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


class Temporary(DeliveryError):
    """Not done; it may succeed later."""

    def __init__(
        self, message: str | None = None, *, code: str | None = None, after_seconds: float | None = None
    ) -> None:
        super().__init__(message, code=code)
        self.after_seconds = after_seconds


class Permanent(DeliveryError):
    """Not done, and trying again will not help."""


class Refused(DeliveryError):
    """Our own guard refused it; nothing was sent."""


class Ambiguous(DeliveryError):
    """It may have happened."""


class StorageUnavailable(Temporary):
    """The storage of files cannot be reached now."""


class StorageRefused(Refused):
    """The storage will not take or give this file: permission, space, or no such bucket."""


class ObjectMissing(Permanent):
    """The storage holds no file of this name."""
