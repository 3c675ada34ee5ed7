"""What the entry points of this package name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from effects import JobType
from effects.extend import SealedColumn
from effects_email.jobs.compose import EmailCompose
from effects_email.jobs.send import EmailSend
from effects_email.message import attached_bytes, source
from effects_email.suppressions import rows as suppression_rows

if TYPE_CHECKING:
    from effects import Effects


def job_types(app: Effects) -> list[JobType[Any]]:
    """The entry point `effects.job_types`."""
    return [EmailSend(app), EmailCompose(app)]


def sealed_columns() -> list[SealedColumn]:
    """The entry point `effects.sealed`."""
    return [*source.sealed_columns(), *attached_bytes.sealed_columns(), *suppression_rows.sealed_columns()]
