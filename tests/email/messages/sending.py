"""What the tests of sending share."""

from __future__ import annotations

import email
from collections.abc import Callable
from email import policy
from typing import Any, TypeAlias

from effects import Effects
from effects_email import EmailReceipt
from tests.support.manual_workers import row

Send: TypeAlias = Callable[..., EmailReceipt]
GROUP = {"to": ["a@x.example", "b@x.example"], "cc": ["c@y.example"], "bcc": ["d@z.example"], "group": True}


def sent(app: Effects) -> dict[str, Any]:
    return row(app, "sent_emails")


def parsed(data: bytes) -> Any:
    return email.message_from_bytes(data, policy=policy.default)
