"""The calls of `effects_email.api` in async code, awaited."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from effects import Effects
from effects.extend import OnUnknown, in_async
from effects_email.api import send_email, send_templated_email, send_templated_emails
from effects_email.message.address import Recipient
from effects_email.message.attachments import File
from effects_email.message.invite import Invite
from effects_email.request import NewEmail
from effects_email.writing import EmailReceipt

if TYPE_CHECKING:
    from effects.extend import AnyAsyncSession


async def send_email_async(
    *,
    to: Recipient | Sequence[Recipient],
    subject: str,
    text: str | None = None,
    html: str | None = None,
    markdown: str | None = None,
    event_id: str | None = None,
    key: str | None = None,
    category: str | None = None,
    transport: str | None = None,
    attachments: Sequence[File | str | Path] = (),
    invite: Invite | None = None,
    headers: Mapping[str, str] | None = None,
    run_at: datetime | None = None,
    expires_at: datetime | None = None,
    on_unknown: OnUnknown | None = None,
    sender: Recipient | None = None,
    group: bool = False,
    cc: Sequence[Recipient] = (),
    bcc: Sequence[Recipient] = (),
    reply_to: Sequence[Recipient] = (),
    despite_suppression: str | None = None,
    return_path: Recipient | None = None,
    tags: Sequence[str] = (),
    metadata: Mapping[str, str] | None = None,
    session: AnyAsyncSession | None = None,
    effects: Effects | None = None,
) -> EmailReceipt:
    """Write one message without a template in an asynchronous transaction: `send_email`, awaited.

    Args:
        session: as for `send_templated_email_async`.

    Raises:
        As `send_email`.
    """
    return await in_async(send_email, **locals())


async def send_templated_email_async(
    template: str,
    *,
    to: Recipient | Sequence[Recipient],
    context: Mapping[str, Any],
    event_id: str | None = None,
    key: str | None = None,
    locale: str | None = None,
    category: str | None = None,
    transport: str | None = None,
    attachments: Sequence[File | str | Path] = (),
    invite: Invite | None = None,
    headers: Mapping[str, str] | None = None,
    run_at: datetime | None = None,
    expires_at: datetime | None = None,
    on_unknown: OnUnknown | None = None,
    sender: Recipient | None = None,
    group: bool = False,
    cc: Sequence[Recipient] = (),
    bcc: Sequence[Recipient] = (),
    reply_to: Sequence[Recipient] = (),
    despite_suppression: str | None = None,
    return_path: Recipient | None = None,
    tags: Sequence[str] = (),
    metadata: Mapping[str, str] | None = None,
    session: AnyAsyncSession | None = None,
    effects: Effects | None = None,
) -> EmailReceipt:
    """Render a template and write the message in an asynchronous transaction: `send_templated_email`, awaited.

    It renders in the event loop's thread; without a session, off it.

    Args:
        session: an AsyncSession or AsyncConnection, which is never committed by us. Without one, a transaction of our
            own, off the event loop's thread: cancelled after it has begun, it may have been committed.

    Raises:
        As `send_templated_email`.
    """
    return await in_async(send_templated_email, **locals())


async def send_templated_emails_async(
    emails: Iterable[NewEmail], *, session: AnyAsyncSession | None = None, effects: Effects | None = None
) -> list[EmailReceipt]:
    """Write many messages: `send_templated_emails`, awaited. `session` is as for `send_templated_email_async`.

    Raises:
        As `send_templated_emails`.
    """
    return await in_async(send_templated_emails, **locals())
