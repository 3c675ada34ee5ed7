"""The envelope's sender: where bounces go. It is no header, and may be apart from From."""

from __future__ import annotations

from collections.abc import Sequence

from effects import Effects
from effects_email.loading import Message
from effects_email.message.source import Address, MessageSource
from effects_email.returned.token import bounce_address
from effects_email.settings import EmailSettings


class EnvelopeSenders:
    """Decides by the message, then EFFECTS_EMAIL_BOUNCE_DOMAIN, EFFECTS_EMAIL_RETURN_PATH, and the message's From."""

    def __init__(self, app: Effects, settings: EmailSettings) -> None:
        self._app = app
        self._default, self._bounce_domain = settings.return_path, settings.email_bounce_domain

    def address(self, source: MessageSource) -> Address:
        """Where it is the same for every try and recipient."""
        return source.return_path or self._default or source.sender

    def of(self, message: Message, source: MessageSource, numbers: Sequence[int]) -> str:
        """
        Args:
            numbers: of the recipients that this try is for; none if it is redirected: what bounces then is not theirs.
        """
        if source.return_path is not None or not self._bounce_domain or not numbers:
            return self.address(source).spec
        return bounce_address(
            self._app, self._bounce_domain, job_id=message.job_id, message_id=source.message_id,
            number=numbers[0] if len(numbers) == 1 else None,
        )  # fmt: skip
