"""What an operator may set about mail."""

from __future__ import annotations

from typing import Any

import pytest

from effects import ConfigurationError
from effects_email import Address, EmailSettings

PASSWORD = "hunter2"


def settings_of(**environ: str) -> EmailSettings:
    return EmailSettings.from_environment({f"EFFECTS_{name}": value for name, value in environ.items()})


def test_transports_have_names() -> None:
    bulk = f"smtps://u:{PASSWORD}@relay.example"
    settings = settings_of(SMTP_URL="smtp://localhost:25", EMAIL_TRANSPORT_BULK=bulk, EMAIL_TRANSPORT_EMPTY="")
    assert settings.transport_urls() == {"default": "smtp://localhost:25", "bulk": bulk}
    assert PASSWORD not in repr(settings)
    assert settings_of().transport_urls() == {}


def test_options_win_over_the_environment() -> None:
    environ = {"EFFECTS_SMTP_URL": "smtp://a", "EFFECTS_EMAIL_TRANSPORT_X": "smtp://x", "EFFECTS_EMAIL_HOLD": "yes"}
    settings = EmailSettings.from_environment(
        environ, smtp_url="smtp://b", email_transports={"y": "smtp://y"}, email_hold=None
    )
    assert settings.transport_urls() == {"default": "smtp://b", "x": "smtp://x", "y": "smtp://y"}
    assert settings.email_hold


def test_recipients_are_addresses() -> None:
    settings = settings_of(EMAIL_FROM='"Shop, Inc" <hello@shop.example>', EMAIL_REDIRECT="team@shop.example")
    assert settings.sender == Address("hello", "shop.example", "Shop, Inc")
    assert settings.redirect == Address("team", "shop.example")
    assert settings_of().sender is settings_of().redirect is None


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"EMAIL_FROM": "nobody"}, "EFFECTS_EMAIL_FROM is no e-mail address"),
        ({"EMAIL_REDIRECT": "a@b@c"}, "EFFECTS_EMAIL_REDIRECT is no e-mail address"),
        ({"EMAIL_HOLD": "perhaps"}, "EFFECTS_EMAIL_HOLD is 'perhaps'; give true or false"),
        ({"EMAIL_CONTENT_DAYS": "soon"}, "EFFECTS_EMAIL_CONTENT_DAYS is 'soon'; give a number"),
        ({"EMAIL_CONTENT_DAYS": "-1"}, "EFFECTS_EMAIL_CONTENT_DAYS is -1.0; it must be above 0"),
        ({"EMAIL_CONTENT_DAYS": "nan"}, "it must be above 0"),
        ({"EMAIL_TRANSPORT_DEFAULT": "smtp://x"}, "the one that is called default is EFFECTS_SMTP_URL"),
        ({"EMAIL_TRANSPORT_A-B": f"smtp://u:{PASSWORD}@x"}, "the mail transport 'a-b': a name has"),
    ],
)
def test_invalid_settings_are_named(environ: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        settings_of(**environ)
    assert says in str(caught.value)
    assert PASSWORD not in str(caught.value)
