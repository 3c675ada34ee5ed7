"""`toolkit.emails`: what the tests of an app see of its mail."""

from __future__ import annotations

from email import message_from_bytes
from pathlib import Path

import pytest

from effects import ConfigurationError, Effects, Retry
from effects.testing import Toolkit
from effects_email import File, send_email, send_templated_email
from effects_email.errors import ContentChanged
from tests.email.messages.conftest import CONTEXT, FILES, write


def sign_up(address: str) -> None:
    """An app's code: it knows no toolkit."""
    send_templated_email("welcome", to=address, context=CONTEXT, event_id=f"signup:{address}")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "emails", FILES)


def test_an_app_sees_what_it_wrote(folder: Path) -> None:
    with Toolkit(Effects(templates=folder, email_from="Shop <hello@shop.example>")) as toolkit:
        assert toolkit.emails == []
        sign_up("ann@example.com")
        sign_up("ann@example.com")
        [mail] = toolkit.emails
        assert (mail.to, mail.subject, mail.template, mail.state) == (
            ["ann@example.com"], "Welcome, Ann!", "welcome", "intended",
        )  # fmt: skip
        assert CONTEXT["link"] in mail.text
        assert mail.eml.startswith(b"From: Shop")
        toolkit.drain()
        assert [email.state for email in toolkit.emails] == ["done"]
        assert [email.source.subject for email in toolkit.captured("email.send").loaded] == ["Welcome, Ann!"]


def test_files_are_in_the_message_as_its_recipients_get_it(tmp_path: Path) -> None:
    terms = tmp_path / "terms.txt"
    terms.write_text("Terms.")
    with Toolkit(Effects(email_from="hello@shop.example")) as toolkit:
        files = [File(b"%PDF-1.7", filename="invoice.pdf"), terms]
        send_email(to="ann@example.com", subject="Invoice", text="It is attached.", attachments=files)
        [mail] = toolkit.emails
        assert [(file.filename, file.content) for file in mail.attachments] == [
            ("invoice.pdf", b"%PDF-1.7"), ("terms.txt", b"Terms."),
        ]  # fmt: skip
        assert "%PDF" not in repr(mail.attachments)
        parsed = message_from_bytes(mail.eml)
        parts = {part.get_filename(): part.get_payload(decode=True) for part in parsed.walk() if part.get_filename()}
        assert parts == {"invoice.pdf": b"%PDF-1.7", "terms.txt": b"Terms."}
        terms.write_text("Other terms.")
        with pytest.raises(ContentChanged, match="not what it was at the call"):
            toolkit.emails  # noqa: B018


def test_another_outcome_may_be_chosen(folder: Path) -> None:
    with Toolkit(Effects(templates=folder, email_from="hello@shop.example")) as toolkit:
        toolkit.capture("email.send", Retry("busy"))
        sign_up("ann@example.com")
        toolkit.drain()
        assert toolkit.emails[0].state == "intended"


@pytest.mark.slow
def test_there_is_nothing_else(folder: Path) -> None:
    with Toolkit(Effects(templates=folder)) as toolkit:
        with pytest.raises(AttributeError, match="letters"):
            toolkit.letters  # noqa: B018
        with pytest.raises(ConfigurationError, match="set EFFECTS_EMAIL_FROM"):
            sign_up("ann@example.com")
