"""The calls of `effects_email.api` in async code, awaited."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from effects import Effects
from effects.extend.sql import in_async
from effects_email.api import send_email, send_templated_email, send_templated_emails
from effects_email.message.address import Recipient
from effects_email.request import EmailOptions, NewEmail, spelled_out
from effects_email.writing import EmailReceipt

if TYPE_CHECKING:
    from effects.extend.sql import AnyAsyncSession


@spelled_out
async def send_email_async(
    *,
    to: Recipient | Sequence[Recipient],
    subject: str,
    text: str | None = None,
    html: str | None = None,
    markdown: str | None = None,
    session: AnyAsyncSession | None = None,
    effects: Effects | None = None,
    **options: Unpack[EmailOptions],
) -> EmailReceipt:
    """Write one message without a template in an asynchronous transaction: `send_email`, awaited.

    Args:
        session: as for `send_templated_email_async`.

    Raises:
        As `send_email`.
    """
    return await in_async(
        send_email,
        to=to,
        subject=subject,
        text=text,
        html=html,
        markdown=markdown,
        session=session,
        effects=effects,
        **options,
    )


@spelled_out
async def send_templated_email_async(
    template: str,
    *,
    to: Recipient | Sequence[Recipient],
    context: Mapping[str, Any],
    locale: str | None = None,
    session: AnyAsyncSession | None = None,
    effects: Effects | None = None,
    **options: Unpack[EmailOptions],
) -> EmailReceipt:
    """Render a template and write the message in an asynchronous transaction: `send_templated_email`, awaited.

    It renders in the event loop's thread; without a session, off it.

    Args:
        session: an AsyncSession or AsyncConnection, which is never committed by us. Without one, a transaction of our
            own, off the event loop's thread: cancelled after it has begun, it may have been committed.

    Raises:
        As `send_templated_email`.
    """
    return await in_async(
        send_templated_email,
        template=template,
        to=to,
        context=context,
        locale=locale,
        session=session,
        effects=effects,
        **options,
    )


async def send_templated_emails_async(
    emails: Iterable[NewEmail], *, session: AnyAsyncSession | None = None, effects: Effects | None = None
) -> list[EmailReceipt]:
    """Write many messages: `send_templated_emails`, awaited. `session` is as for `send_templated_email_async`.

    Raises:
        As `send_templated_emails`.
    """
    return await in_async(send_templated_emails, **locals())
