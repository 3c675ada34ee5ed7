"""The mail that Django itself sends, in the shop with accounts: what is written, rolled back and sent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from email import message_from_bytes, policy
from email.message import EmailMessage as Parsed
from email.mime.base import MIMEBase
from email.mime.image import MIMEImage
from email.mime.text import MIMEText
from pathlib import Path

import pytest
from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.cache import cache
from django.core.mail import (
    BadHeaderError,
    EmailMessage,
    EmailMultiAlternatives,
    mail_admins,
    send_mail,
    send_mass_mail,
)
from django.db import transaction
from django.test import TransactionTestCase, override_settings
from django.utils.functional import lazystr

from effects import EffectsError
from effects.contrib.django import app
from effects.worker import Worker

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
ICS = "BEGIN:VCALENDAR\r\nMETHOD:REQUEST\r\nEND:VCALENDAR\r\n"


@contextmanager
def rolled_back() -> Iterator[None]:
    with suppress(ZeroDivisionError), transaction.atomic():
        yield
        raise ZeroDivisionError


@override_settings(EMAIL_BACKEND="effects_email.django.EmailBackend")
class MailCase(TransactionTestCase):
    @property
    def folder(self) -> Path:
        return Path(settings.EFFECTS["smtp_url"].removeprefix("maildir:")) / "new"

    def tearDown(self) -> None:
        self.sent()
        for path in self.folder.glob("*"):
            path.unlink()

    def sent(self) -> list[Parsed]:
        Worker(app).drain()
        paths = sorted(self.folder.glob("*"), key=lambda path: path.stat().st_mtime_ns)
        return [message_from_bytes(path.read_bytes(), policy=policy.default) for path in paths]

    def only(self) -> Parsed:
        [message] = self.sent()
        return message


class MessageTests(MailCase):
    """Each part of a message is in what was sent, or named by an error."""

    def test_all_addresses(self) -> None:
        EmailMessage(
            lazystr("Grüße"),
            lazystr("Hallo"),
            "Shop <from@example.com>",
            ["Ann <ann@example.com>", "bo@example.com"],
            bcc=["secret@example.com"],
            cc=["cy@example.com"],
            reply_to=["help@example.com"],
            headers={"X-Order": 17, "References": "<a@b>"},
        ).send()
        message = self.only()
        assert (message["Subject"], message["From"]) == ("Grüße", "Shop <from@example.com>")
        assert (message["To"], message["Cc"]) == ("Ann <ann@example.com>, bo@example.com", "cy@example.com")
        assert (message["Reply-To"], message["X-Order"], message["References"]) == ("help@example.com", "17", "<a@b>")
        assert message.get_all("Delivered-To")[-1] == "secret@example.com"
        assert "secret" not in str(message["Bcc"])

    def test_the_header_from_is_the_sender_and_from_email_the_return_path(self) -> None:
        EmailMessage(
            "s", "b", "bounce@example.com", ["ann@example.com"], headers={"From": "Shop <hi@example.com>"}
        ).send()
        message = self.only()
        assert (message["From"], message["Return-Path"]) == ("Shop <hi@example.com>", "<bounce@example.com>")

    def test_only_hidden_recipients(self) -> None:
        EmailMessage("s", "b", "from@example.com", bcc=["ann@example.com", "bo@example.com"]).send()
        message = self.only()
        assert message["To"] == "undisclosed-recipients:;"
        assert message.get_all("Delivered-To") == ["ann@example.com", "bo@example.com"]

    def test_djangos_default_sender_is_ours(self) -> None:
        send_mail("s", "b", None, ["ann@example.com"])
        assert self.only()["From"] == "Shop <hello@shop.example>"

    def test_both_bodies_whichever_comes_first(self) -> None:
        for body, subtype, alternative, kind in (
            ("plain", "plain", "<p>rich</p>", "text/html"),
            ("<p>rich</p>", "html", "plain", "text/plain"),
        ):
            message = EmailMultiAlternatives("s", body, "from@example.com", ["ann@example.com"])
            message.content_subtype = subtype
            message.attach_alternative(alternative, kind)
            message.send()
        for message in self.sent():
            parts = [part.get_content().strip() for part in message.walk() if not part.is_multipart()]
            assert (parts[0], "<p>rich</p>" in parts[1]) == ("plain", True)

    def test_attachments_are_the_same_bytes(self) -> None:
        message = EmailMultiAlternatives("s", "", "from@example.com", ["ann@example.com"])
        message.attach("bill.pdf", b"%PDF \x00\xff", "application/pdf")
        message.attach("notes.txt", "Grüße\n")
        message.attach(None, b"nameless", "application/zip")
        image = MIMEImage(PNG, "png")
        image.add_header("Content-ID", "<logo>")
        message.attach(image)
        message.attach(MIMEText("Grüße", "csv", "latin-1"))
        message.attach_alternative('<img src="cid:logo">', "text/html")
        message.mixed_subtype = "related"
        message.send()
        parts = {
            part.get_filename() or part["Content-ID"]: part.get_payload(decode=True) for part in self.only().walk()
        }
        assert parts["bill.pdf"] == b"%PDF \x00\xff"
        assert parts["notes.txt"] == "Grüße\n".encode()
        assert (parts["attachment.zip"], parts["attachment.csv"]) == (b"nameless", "Grüße".encode())
        assert PNG in parts.values()

    def test_an_invitation_is_in_the_body_and_attached(self) -> None:
        message = EmailMultiAlternatives("s", "b", "from@example.com", ["ann@example.com"])
        message.attach_alternative(ICS, "text/calendar; method=REQUEST; charset=utf-8")
        message.send()
        kinds = [(part.get_content_type(), part.get_param("method")) for part in self.only().walk()]
        assert ("text/calendar", "REQUEST") in kinds

    def test_what_cannot_be_carried_is_named(self) -> None:
        def built(**changes: object) -> EmailMultiAlternatives:
            message = EmailMultiAlternatives("s", "b", "from@example.com", ["ann@example.com"])
            for name, value in changes.items():
                setattr(message, name, value)
            return message

        part, nested = MIMEBase("application", "x-odd"), MIMEBase("multipart", "mixed")
        part.set_payload(b"odd")
        part.add_header("X-Odd", "1")
        nested.attach(MIMEText("inner"))
        cases = (
            (built(mixed_subtype="parallel"), "mixed_subtype is 'parallel'"),
            (built(alternatives=[("x", "text/x-amp-html")]), "text/x-amp-html"),
            (built(alternatives=[("x", "text/plain")]), "two bodies of text/plain"),
            (built(extra_headers={"Message-ID": "<a@b>"}), "Message-ID is not for the caller"),
            (built(extra_headers={"To": "List <list@example.com>"}), "To is not for the caller"),
            (built(attachments=[part]), "header x-odd"),
            (built(attachments=[nested]), "multipart/mixed"),
            (built(attachments=[("a.eml", EmailMessage("s", "b"), "message/rfc822")]), "message/rfc822 is"),
            (built(to=["ann"]), "to is no e-mail address"),
        )
        for message, named in cases:
            with self.subTest(named), pytest.raises(EffectsError, match=named):
                message.send()
        with pytest.raises(BadHeaderError, match="subject has a line break"):
            built(subject="a\nBcc: eve@example.com").send()
        assert self.sent() == []


class TransactionTests(MailCase):
    """A message stands and falls with the transaction."""

    def test_a_rollback_takes_it_back(self) -> None:
        with rolled_back():
            send_mail("s", "b", None, ["ann@example.com"])
        assert self.sent() == []
        with transaction.atomic():
            send_mail("s", "b", None, ["ann@example.com"])
            assert list(self.folder.glob("*")) == []
        assert len(self.sent()) == 1

    def test_many_are_written_all_or_none(self) -> None:
        good, bad = ("s", "b", "from@example.com", ["ann@example.com"]), ("s", "b", "from@example.com", ["ann"])
        with pytest.raises(EffectsError, match=r"email_messages\[1\]: to is no"):
            send_mass_mail([good, bad])
        assert self.sent() == []
        with self.assertLogs("effects.email", "ERROR") as logs:
            assert send_mass_mail([good, bad], fail_silently=True) == 1
        assert ("email.not_written" in logs.output[0], "ann" in logs.output[0]) == (True, False)
        assert len(self.sent()) == 1

    def test_admins_are_told_of_what_failed_though_it_was_rolled_back(self) -> None:
        with rolled_back():
            mail_admins("in the block", "b")
        mail_admins("after it", "b", html_message="<p>b</p>")
        message = self.only()
        assert (message["To"], message["Subject"]) == ("olga@shop.example", "[Django] after it")

    def test_a_password_reset(self) -> None:
        get_user_model().objects.create_user("ann", "ann@example.com", "before")
        with rolled_back():
            self.client.post("/auth/password_reset/", {"email": "ann@example.com"})
        assert self.sent() == []
        assert self.client.post("/auth/password_reset/", {"email": "ann@example.com"}).status_code == 302
        message = self.only()
        assert message["To"] == "ann@example.com"
        assert "/auth/reset/" in message.get_content()

    def test_allauth_confirms_an_address(self) -> None:
        form = {"email": "bo@example.com", "password1": "a long one 17", "password2": "a long one 17"}
        with rolled_back():
            assert self.client.post("/accounts/signup/", form).status_code == 302
        assert (self.sent(), get_user_model().objects.count()) == ([], 0)
        cache.clear()  # where allauth counts what it has sent to an address
        assert self.client.post("/accounts/signup/", form).status_code == 302
        message = self.only()
        assert (message["To"], "confirm-email" in message.as_string()) == ("bo@example.com", True)
