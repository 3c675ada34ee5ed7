"""effects: side effects as rows of your own transaction, carried out by a worker, each known for what it is."""

from effects.alerts import Alert, DeadLetters, OldDueJobs, SameError
from effects.api import enqueue, enqueue_many
from effects.app import Effects, default, set_default
from effects.errors import (
    Ambiguous,
    ConfigurationError,
    DeliveryError,
    EffectsError,
    EnqueueError,
    IdempotencyConflict,
    JobNotFound,
    KeyUnavailable,
    LeaseLost,
    ObjectMissing,
    PayloadInvalid,
    Permanent,
    SchemaMismatch,
    StorageRefused,
    StorageUnavailable,
    StoreUnavailable,
    Temporary,
    UnknownJobType,
)
from effects.job import Job, NewJob, Receipt
from effects.job_type import Attempt, JobType, Placement
from effects.outcome import Cancelled, Done, Outcome, Pause, Refused, Retry, Snooze, Unknown
from effects.redact import Sensitive
from effects.retry import Exponential, Fixed, Linear, Listed, Polynomial, RetryPolicy
from effects.schedules import Schedule
from effects.settings import Settings

__all__ = [
    "Alert",
    "Ambiguous",
    "Attempt",
    "Cancelled",
    "ConfigurationError",
    "DeadLetters",
    "DeliveryError",
    "Done",
    "Effects",
    "EffectsError",
    "EnqueueError",
    "Exponential",
    "Fixed",
    "IdempotencyConflict",
    "Job",
    "JobNotFound",
    "JobType",
    "KeyUnavailable",
    "LeaseLost",
    "Linear",
    "Listed",
    "NewJob",
    "ObjectMissing",
    "OldDueJobs",
    "Outcome",
    "Pause",
    "PayloadInvalid",
    "Permanent",
    "Placement",
    "Polynomial",
    "Receipt",
    "Refused",
    "Retry",
    "RetryPolicy",
    "SameError",
    "Schedule",
    "SchemaMismatch",
    "Sensitive",
    "Settings",
    "Snooze",
    "StorageRefused",
    "StorageUnavailable",
    "StoreUnavailable",
    "Temporary",
    "Unknown",
    "UnknownJobType",
    "default",
    "enqueue",
    "enqueue_many",
    "set_default",
]
