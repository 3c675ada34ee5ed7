"""What the entry points of this package name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from effects import JobType
from effects.extend.secrets import SealedColumn
from effects_email import suppression
from effects_email.jobs.compose import EmailCompose
from effects_email.jobs.send import EmailSend
from effects_email.message import attachments, source
from effects_email.oauth import keeper

if TYPE_CHECKING:
    from effects import Effects


def job_types(app: Effects) -> list[JobType[Any]]:
    """The entry point `effects.job_types`."""
    return [EmailSend(app), EmailCompose(app)]


def sealed_columns() -> list[SealedColumn]:
    """The entry point `effects.sealed`."""
    return [
        *source.sealed_columns(), *attachments.sealed_columns(), *suppression.sealed_columns(),
        *keeper.sealed_columns(),
    ]  # fmt: skip
