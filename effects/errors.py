"""Every error that effects raises, divided by what can be done about it.

    EffectsError
    ├─ ConfigurationError        a setting or a registration is wrong: raised at start, names it
    │   ├─ SchemaMismatch        the tables are not of this version; names the command to run
    │   ├─ UnknownJobType
    │   └─ KeyUnavailable        a sealed value needs a key that EFFECTS_KEYS does not hold
    │      └─ SealInvalid        a sealed value that no key opens
    ├─ EnqueueError              the caller's own input is wrong: nothing was written
    │   ├─ PayloadInvalid
    │   ├─ SessionForgotten      no session= was given inside the caller's own transaction that has written
    │   └─ IdempotencyConflict   the same key came with another payload
    ├─ JobNotFound               there is no such job, or no effect of that key (404)
    ├─ KeyAmbiguous              effects of several job types have this key: name one
    ├─ JobStateError             the job exists, and its state does not allow the action (409)
    ├─ LimitNotFound             an operator named a limit key that has no limits
    ├─ QueueNotFound             … an unknown queue
    ├─ WorkerNotFound            … a worker that is not registered
    ├─ FailoverNotFound          … a failover that no worker has noticed
    ├─ BulkNotFound              … a bulk action that is not there
    ├─ SignatureInvalid          a request that is not what its sender signed; see `effects.keys.signing`
    │   └─ SecretInvalid         the secret itself cannot be used
    ├─ LeaseLost                 this attempt no longer owns its job: do nothing more
    ├─ StoreUnavailable          the database is unavailable; the last statement may have taken effect or not
    │   └─ StoreConflict         it is there; another transaction was in the way: repeat
    ├─ StoreRejected             the database refuses a statement: missing tables, a privilege, a damaged file
    ├─ EffectUnknown             the effect may have happened; it waits for you to decide
    ├─ WorkerCannotContinue      no retry can help this worker: a fresh process may
    └─ DeliveryError             what a handler may raise about its peer; the subclass is the fate

The fates are the outcomes of `effects.model.outcome`: Refused, Retry, Unknown, Cancelled, Snooze, Pause and Done may be
raised as well as returned. Errors of one fate derive from it: those of the file storage (`effects.kit.files.base`),
and those of the packages.

A docstring is the default message. No message ever holds a payload, a header, a body or a URL's query.
"""

from __future__ import annotations

from typing import ClassVar


class EffectsError(Exception):
    """Something in effects went wrong."""

    listed_by: ClassVar[str | None] = None  # of errors about a name: what lists the names; the command line adds it

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


class SealInvalid(KeyUnavailable):
    """A sealed value that its own key does not open: it was altered, or moved from where it was sealed for."""


class EnqueueError(EffectsError):
    """The job cannot be accepted as given; nothing was written."""


class PayloadInvalid(EnqueueError):
    """The payload does not fit its job type."""


class SessionForgotten(EnqueueError):
    """session= is missing inside a transaction of the caller's own that has written; this call wrote nothing."""


class IdempotencyConflict(EnqueueError):
    """This idempotency key was used before with another payload."""

    def __init__(self, message: str | None = None, *, job_id: int | None = None) -> None:
        super().__init__(message)
        self.job_id = job_id  # the job that holds the key


class JobNotFound(EffectsError):
    """There is no such job."""

    listed_by = "effects jobs list"


class KeyAmbiguous(EffectsError):
    """Effects of several job types have this key."""


class JobStateError(EffectsError):
    """The state of the job does not allow this."""

    def __init__(self, message: str | None = None, *, code: str = "state") -> None:
        super().__init__(message)
        self.code = code  # the reason in a word, the same for every job: the status, or such as `requeued_already`


class LimitNotFound(EffectsError):
    """There are no limits for this key."""

    listed_by = "effects limits list"


class QueueNotFound(EffectsError):
    """Nothing is known of this queue."""

    listed_by = "effects queues list"


class WorkerNotFound(EffectsError):
    """No such worker is registered."""

    listed_by = "effects workers list"


class FailoverNotFound(EffectsError):
    """No failover has this id."""

    listed_by = "effects failovers list"


class BulkNotFound(EffectsError):
    """There is no such bulk action."""

    listed_by = "effects bulk list"


class SignatureInvalid(EffectsError):
    """The signature does not fit the request."""


class SecretInvalid(SignatureInvalid):
    """A secret is `whsec_` and the base64 text of 24 to 64 bytes."""


class LeaseLost(EffectsError):
    """This attempt no longer owns its job."""


class StoreUnavailable(EffectsError):
    """The database cannot be reached."""

    def __init__(self, message: str | None = None, *, read_only: bool = False) -> None:
        super().__init__(message)
        self.read_only = read_only  # it answers, and takes no writes: a standby, or a file without the permission


class StoreConflict(StoreUnavailable):
    """Another transaction was in the way; nothing was written. The database is there: repeat."""


class StoreRejected(EffectsError):
    """The database refuses a statement."""

    def __init__(self, message: str | None = None, *, fault: str = "bug") -> None:
        super().__init__(message)
        self.fault = fault  # one of `effects.store.db.faults.Fault`


class WorkerCannotContinue(EffectsError):
    """No retry can help this worker: a fresh process may."""


class DeliveryError(EffectsError):
    """The effect did not succeed."""

    code: str | None

    def __init__(self, message: str | None = None, *, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


class EffectUnknown(EffectsError):
    """The effect may have happened, in full or in part, and is not repeated by itself: a person finds out."""


def code_of(error: BaseException) -> str:
    """What an error is called in a record: the code that we gave it, the SQLSTATE of a database, else its class.

    An attribute `code` of a foreign class has no meaning in the record: it may be an exit code, an HTTP status, the
    anchor of a help page.
    """
    if isinstance(error, EffectsError) and (code := getattr(error, "code", None)):
        return str(code)
    state = getattr(getattr(error, "orig", None) or error, "sqlstate", None)
    return state if isinstance(state, str) else type(error).__name__
