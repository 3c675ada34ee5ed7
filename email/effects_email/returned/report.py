"""The one form of everything that comes back, whoever wrote it."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, TypeAlias

import msgspec

Form: TypeAlias = Literal["dsn", "arf"]
# As RFC 3464 names them, and what a recipient says of the message by ARF (RFC 5965).
Action: TypeAlias = Literal["failed", "delayed", "delivered", "relayed", "expanded", "complained", "unsubscribed"]


class RecipientReport(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the message for one recipient.

    `addresses`: of the recipient, the one that the sender used first; none if the report names none. `status`: an
    enhanced code such as 5.1.1. `diagnostic`: the last server's words, one line, which may be personal.
    """

    action: Action
    addresses: tuple[str, ...] = ()
    status: str | None = None
    diagnostic: str = ""

    def __repr__(self) -> str:
        return f"RecipientReport({self.action!r}, status={self.status!r})"


class ReturnedReport(msgspec.Struct, frozen=True, kw_only=True):
    """One report that came back.

    `text`: where a token may stand: headers that name where it came to, and what it quotes of the message.
    `message_ids`: of the message that it speaks of, the likeliest first. `identity`: the same for the same report.
    """

    form: Form
    recipients: tuple[RecipientReport, ...]
    text: str
    message_ids: tuple[str, ...]
    identity: str
    at: datetime | None = None  # by its own Date

    def __repr__(self) -> str:
        return f"ReturnedReport({self.form!r}, {self.recipients!r})"
