"""Django's own tests of a mail backend, run on ours: each message is written, sent by a worker and read again.

DJANGO_TESTS is the folder `tests` of Django's source.
"""

from __future__ import annotations

from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from unittest import expectedFailure

import mail.tests as of_django
from django.conf import settings
from django.test import TransactionTestCase

from effects.contrib.django import app
from effects.worker import Worker

# What cannot pass, and why. One that passes all the same is a failure, as Python's `expectedFailure` has it.
CANNOT_PASS = {
    "test_lazy_addresses": "its addresses have no domain, which we refuse at the call",
    "test_recipient_without_domain": "its addresses have no domain, which we refuse at the call",
    "test_send_long_lines": "we encode a text that has few ASCII letters as base64, which is shorter",
    "test_send_unicode": "we encode a subject as base64, not as quoted text; it reads the same",
    "test_send_verbose_name": "we encode a name as base64, not as quoted text; it reads the same",
}


class BackendTests(of_django.BaseEmailBackendTests, TransactionTestCase):
    email_backend = "effects_email.django.EmailBackend"

    @property
    def folder(self) -> Path:
        return Path(settings.EFFECTS["smtp_url"].removeprefix("maildir:")) / "new"

    def get_mailbox_content(self) -> list[EmailMessage]:
        """In the order of their recipients, because a worker sends several at once."""
        Worker(app).drain()
        paths = self.folder.iterdir() if self.folder.exists() else ()
        messages = [message_from_bytes(path.read_bytes(), policy=policy.default) for path in paths]
        for message in messages:
            for part in message.walk():
                _as_django_writes(part)
        return sorted(messages, key=lambda message: str(message["To"]))

    def flush_mailbox(self) -> None:
        self.get_mailbox_content()
        for path in self.folder.glob("*"):
            path.unlink()

    def setUp(self) -> None:
        super().setUp()
        self.addCleanup(self.flush_mailbox)


def _as_django_writes(part: EmailMessage) -> None:
    """Our texts end with a line break, and say us-ascii where nothing else is in them."""
    if part.get_content_maintype() == "text":
        part.set_payload(part.get_payload().rstrip("\r\n"))
        if part.get_content_charset() == "us-ascii":
            part.replace_header("Content-Type", f'{part.get_content_type()}; charset="utf-8"')


for name in CANNOT_PASS:
    setattr(BackendTests, name, expectedFailure(getattr(of_django.BaseEmailBackendTests, name)))
