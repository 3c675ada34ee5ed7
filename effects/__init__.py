"""effects: side effects as rows of your own transaction, carried out by a worker, each known for what it is."""

from typing import TYPE_CHECKING

from effects.process import lazy

if TYPE_CHECKING:
    from effects.alerts import Alert, DeadLetters, OldDueJobs, SameError, UnresolvedFailovers
    from effects.api import enqueue, enqueue_many
    from effects.app import Effects
    from effects.async_calls import (
        cancel_async,
        enqueue_async,
        enqueue_many_async,
        reschedule_async,
        status_async,
        wait_async,
    )
    from effects.control import CancelResult, RescheduleResult, cancel, reschedule, status, wait
    from effects.default_app import default, set_default
    from effects.errors import (
        ConfigurationError,
        DeliveryError,
        EffectsError,
        EnqueueError,
        IdempotencyConflict,
        JobNotFound,
        JobStateError,
        KeyAmbiguous,
        KeyUnavailable,
        LeaseLost,
        PayloadInvalid,
        SchemaMismatch,
        SessionForgotten,
        StoreConflict,
        StoreRejected,
        StoreUnavailable,
        UnknownJobType,
    )
    from effects.hooks import HookEvent
    from effects.model.attempt import Attempt
    from effects.model.job import Job, NewJob, Receipt
    from effects.model.job_type import JobType, Routing
    from effects.model.outcome import Cancelled, Done, Outcome, Pause, Refused, Retry, Snooze, Unknown
    from effects.options import EffectsOptions
    from effects.retry import Exponential, Fixed, FixedSchedule, Linear, Polynomial, RetryPolicy
    from effects.scheduling.schedules import Schedule
    from effects.secrets.keys import generate_key
    from effects.sessions.forgotten import SessionForgottenWarning
    from effects.settings import Settings
    from effects.storage.errors import ObjectMissing, StorageRefused, StorageUnavailable
    from effects.store.effects.by_key import EffectStatus
    from effects.text.redact import Sensitive
else:
    __getattr__, __dir__ = lazy.names(
        __name__,
        {
            "effects.alerts": "Alert, DeadLetters, OldDueJobs, SameError, UnresolvedFailovers",
            "effects.api": "enqueue, enqueue_many",
            "effects.app": "Effects",
            "effects.async_calls": (
                "cancel_async, enqueue_async, enqueue_many_async, reschedule_async, status_async, wait_async"
            ),
            "effects.control": "CancelResult, RescheduleResult, cancel, reschedule, status, wait",
            "effects.default_app": "default, set_default",
            "effects.errors": (
                "ConfigurationError, DeliveryError, EffectsError, EnqueueError, IdempotencyConflict, "
                "JobNotFound, JobStateError, KeyAmbiguous, KeyUnavailable, LeaseLost, PayloadInvalid, "
                "SchemaMismatch, SessionForgotten, StoreConflict, StoreRejected, "
                "StoreUnavailable, UnknownJobType"
            ),
            "effects.hooks": "HookEvent",
            "effects.secrets.keys": "generate_key",
            "effects.model.attempt": "Attempt",
            "effects.model.job": "Job, NewJob, Receipt",
            "effects.model.job_type": "JobType, Routing",
            "effects.model.outcome": "Cancelled, Done, Outcome, Pause, Refused, Retry, Snooze, Unknown",
            "effects.options": "EffectsOptions",
            "effects.retry": "Exponential, Fixed, FixedSchedule, Linear, Polynomial, RetryPolicy",
            "effects.scheduling.schedules": "Schedule",
            "effects.sessions.forgotten": "SessionForgottenWarning",
            "effects.settings": "Settings",
            "effects.storage.errors": "ObjectMissing, StorageRefused, StorageUnavailable",
            "effects.store.effects.by_key": "EffectStatus",
            "effects.text.redact": "Sensitive",
        },
    )

__all__ = [
    "Alert",
    "Attempt",
    "CancelResult",
    "Cancelled",
    "ConfigurationError",
    "DeadLetters",
    "DeliveryError",
    "Done",
    "EffectStatus",
    "Effects",
    "EffectsError",
    "EffectsOptions",
    "EnqueueError",
    "Exponential",
    "Fixed",
    "FixedSchedule",
    "HookEvent",
    "IdempotencyConflict",
    "Job",
    "JobNotFound",
    "JobStateError",
    "JobType",
    "KeyAmbiguous",
    "KeyUnavailable",
    "LeaseLost",
    "Linear",
    "NewJob",
    "ObjectMissing",
    "OldDueJobs",
    "Outcome",
    "Pause",
    "PayloadInvalid",
    "Polynomial",
    "Receipt",
    "Refused",
    "RescheduleResult",
    "Retry",
    "RetryPolicy",
    "Routing",
    "SameError",
    "Schedule",
    "SchemaMismatch",
    "Sensitive",
    "SessionForgotten",
    "SessionForgottenWarning",
    "Settings",
    "Snooze",
    "StorageRefused",
    "StorageUnavailable",
    "StoreConflict",
    "StoreRejected",
    "StoreUnavailable",
    "Unknown",
    "UnknownJobType",
    "UnresolvedFailovers",
    "cancel",
    "cancel_async",
    "default",
    "enqueue",
    "enqueue_async",
    "enqueue_many",
    "enqueue_many_async",
    "generate_key",
    "reschedule",
    "reschedule_async",
    "set_default",
    "status",
    "status_async",
    "wait",
    "wait_async",
]
