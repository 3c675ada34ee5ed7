"""What the entry points of this package name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from effects import JobType
from effects.extend.secrets import SealedColumn
from effects_webhooks import endpoint_values
from effects_webhooks.jobs import WebhookCompose, WebhookDelivery, WebhookFanOut

if TYPE_CHECKING:
    from effects import Effects


def job_types(app: Effects) -> list[JobType[Any]]:
    """The entry point `effects.job_types`."""
    return [WebhookDelivery(app), WebhookFanOut(app), WebhookCompose(app)]


def sealed_columns() -> list[SealedColumn]:
    """The entry point `effects.sealed`."""
    return endpoint_values.sealed_columns()
