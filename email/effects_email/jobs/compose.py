"""The job type `email.compose`: a templated message for those who can only name a job type and a payload.

A finished report, an alert, a webhook notice, a schedule or a plain INSERT enqueues it; it renders the template and
writes the message, which `email.send` then sends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from sqlalchemy import Connection

from effects import (
    Attempt,
    ConfigurationError,
    Done,
    EffectsError,
    EnqueueError,
    Job,
    JobType,
    KeyUnavailable,
    Outcome,
    Refused,
    Sensitive,
)
from effects.extend.jobs import record_existing, record_followers
from effects.extend.process import lazy
from effects_email.state import state_of

if TYPE_CHECKING:
    from effects import Effects

with lazy.modules(__name__):
    from effects_email import request, writing
    from effects_email.message import attachments

COMPOSE_TYPE = "email.compose"


class StoredAttachment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An object in effects' storage to attach, by its name; with an empty name, none. `filename` as of `File`."""

    name: str
    filename: str | None = None


class EmailComposePayload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """As the arguments of `send_templated_email`. `to` and `context` are sealed in the database.

    Attachments are objects in effects' storage: what can write a payload can read no file of the host by it.
    """

    template: str
    to: Annotated[str | Sequence[str], Sensitive]
    context: Annotated[dict[str, Any], Sensitive] = {}
    event_id: str | None = None
    key: str | None = None
    locale: str | None = None
    category: str | None = None
    transport: str | None = None
    group: bool = False
    attachments: Sequence[StoredAttachment] = ()


class EmailCompose(JobType[EmailComposePayload]):
    """Renders a template and writes the message, in the transaction that records this job as done.

    A crash leaves both or neither. What cannot be rendered ends dead at once, and says why: a requeue after the
    template is fixed writes the message.
    """

    name = COMPOSE_TYPE
    payload = EmailComposePayload
    trusted_fields = ("attachments",)  # objects in the storage, of whatever report or message
    clear_when_scheduled = ("to", "context")  # the app's own people; the jobs of the schedule are sealed
    queue = "emails"

    def __init__(self, app: Effects) -> None:
        self._app = app
        if state_of(app).transports.on_loop():  # as `email.send`, whose queue it shares: see there
            self.perform = self._perform_on_loop  # type: ignore[assignment]

    def clear_names(self, payload: EmailComposePayload) -> Sequence[str]:
        return (*payload.context, "ready", "failed")

    def check_declared(self, payload: EmailComposePayload) -> None:
        email = _email(payload)
        request.check_template(self._app, email)
        request.to_of(email)

    def perform(self, payload: EmailComposePayload, attempt: Attempt) -> Outcome:
        try:
            composed = request.render_email(self._app, _email(payload), datetime.now(UTC))
            with self._app.store.read() as connection:
                writing.check_digest_key(self._app, connection, composed)
        except KeyUnavailable as error:  # the message is right, and another worker may have the key
            return self.wait_for_operator(str(error))
        except (ConfigurationError, EnqueueError) as error:  # neither quotes an address or the context
            return _refused(error)
        return Done(apply=lambda connection: self._write(connection, composed, attempt.job))

    async def _perform_on_loop(self, payload: EmailComposePayload, attempt: Attempt) -> Outcome:
        return await asyncio.to_thread(EmailCompose.perform, self, payload, attempt)

    def _write(self, connection: Connection, composed: request.RenderedEmail, job: Job) -> None:
        try:
            [receipt] = writing.write_messages(self._app, connection, [composed])
        except EnqueueError as error:  # the key has other content
            raise _refused(error) from None
        if receipt.existing:
            message = f"the message of the key {receipt.key!r} (job {receipt.job_id})"
            record_existing(self._app.store, connection, job, message)
        record_followers(self._app.store, connection, job.id, [receipt.job_id])


def _email(payload: EmailComposePayload) -> request.NewEmail:
    files = [
        attachments.File(f"{attachments.STORED}{file.name}", filename=file.filename or None)
        for file in payload.attachments
        if file.name
    ]
    return request.NewEmail(**{**msgspec.structs.asdict(payload), "attachments": files})


def _refused(error: EffectsError) -> Refused:
    return Refused(str(error), code=type(error).__name__)
