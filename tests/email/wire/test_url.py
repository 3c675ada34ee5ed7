"""From a URL to a transport, or to an error that says how to mend it and shows no secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from effects.errors import ConfigurationError
from effects_email.transport import url as url_module
from effects_email.transport.smtp.server import Password
from effects_email.transport.smtp.transport import SmtpTransport
from effects_email.transport.url import TransportURL, open_transport, register


def opened(url: str) -> SmtpTransport:
    transport = open_transport("main", url)
    assert isinstance(transport, SmtpTransport)
    return transport


@pytest.mark.parametrize(("url", "host", "port", "security"), [
    ("smtp+starttls://u:p@mail.example.com:587", "mail.example.com", 587, "starttls"),
    ("smtp+starttls://mail.example.com", "mail.example.com", 587, "starttls"),
    ("smtps://mail.example.com", "mail.example.com", 465, "tls"),
    ("SMTPS://mail.example.com:2465/", "mail.example.com", 2465, "tls"),
    ("smtp://localhost", "localhost", 25, "none"),
    ("smtp://127.0.0.9:2525", "127.0.0.9", 2525, "none"),
    ("smtp://[::1]:2525", "::1", 2525, "none"),
    ("smtp://relay.internal:25?tls=none", "relay.internal", 25, "none"),
])  # fmt: skip
def test_supported_forms(url: str, host: str, port: int, security: str) -> None:
    server = opened(url)._server
    assert (server.name, server.host, server.port, server.security) == ("main", host, port, security)


def test_credentials_are_decoded_and_options_read() -> None:
    server = opened(
        "smtps://user%40shop:p%3A%2F%40%25@h?timeout=20&connect_timeout=10&answer_timeout=900&connections=4"
        "&messages_per_connection=7&connection_seconds=60&idle_seconds=3&helo=shop.example.com"
    )._server
    assert (server.login, server.helo) == (Password("user@shop", "p:/@%"), "shop.example.com")
    limits = server.timeouts
    assert (limits.stage_seconds, limits.connect_seconds, limits.answer_seconds) == (20, 10, 900)
    assert (server.connections, server.messages_per_connection) == (4, 7)
    assert (server.connection_seconds, server.idle_seconds) == (60, 3)


def test_the_defaults_are_those_of_the_documentation() -> None:
    server = opened("smtps://h")._server
    limits = server.timeouts
    assert (limits.connect_seconds, limits.stage_seconds, limits.answer_seconds) == (15, 30, 600)
    assert (server.connections, server.messages_per_connection) == (20, 100)
    assert (server.connection_seconds, server.idle_seconds) == (300, 5)


SECRET = "hunter2secret"


@pytest.mark.parametrize(("url", "says"), [
    ("http://u:{}@h", "give one of mail"), ("{}", "give one of mail"), ("", "give one of mail"),
    ("smtp://u:{}@mail.example.com", "in clear to another machine"), ("smtp://", "names no host"),
    ("smtps://u:{}@", "names no host"), ("smtps://u:{}@h/path", "has a path"), ("smtps://u@h", "without a password"),
    ("smtps://:{}@h", "without a password"), ("smtps://u:{}%00@h", "a NUL"), ("smtps://u:{}@h:0x", "cannot be read"),
    ("smtps://u:{}@h:99999", "cannot be read"), ("smtps://u:{}@[h", "cannot be read"),
    ("smtps://u:{}@h?colour=red", "unknown option; there are tls, "), ("smtps://u:{}@h?{}", "unknown option"),
    ("smtps://u:1?{}@h", "unknown option"),
    ("smtps://u:{}@h?timeout=1&timeout=2", "names an option twice"), ("smtps://u:{}@h?timeout=nan", "number from 0.1"),
    ("smtps://u:{}@h?timeout=301", "number from 0.1 to 300"), ("smtps://u:{}@h?connections=0", "number from 1 to 1000"),
    ("smtps://u:{}@h?tls=none", "both smtps and tls=none"), ("smtp://localhost?tls=maybe", "not one of none"),
    ("smtps://u:{}@h?ca_file=/nowhere/{}", "ca_file that cannot be read"),
    ("smtp://localhost?ca_file=x", "goes with smtps"),
    ("smtps://u:{}@h?helo=a%0d%0aMAIL", "no host name"), ("maildir:", "names no folder"),
    ("maildir://host/path", "names no folder"), ("maildir:mail?x={}", "unknown option; there are none"),
])  # fmt: skip
def test_any_other_url_is_an_error_that_shows_no_secret(url: str, says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        open_transport("main", url.replace("{}", SECRET))
    assert says in str(caught.value)
    assert "'main'" in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_file_that_holds_no_certificate_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nothing")
    with pytest.raises(ConfigurationError, match="ca_file that cannot be read"):
        open_transport("main", f"smtps://h?ca_file={tmp_path / 'ca.pem'}")


def test_no_repr_shows_a_secret() -> None:
    url = TransportURL("main", f"smtps://user:{SECRET}@h:465?x={SECRET}")
    assert repr(url) == "TransportURL(smtps://h:465)"
    transport = opened(f"smtps://user:{SECRET}@h")
    assert SECRET not in repr(transport) + repr(transport._server)


def test_a_custom_scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(url_module, "_registered", {})
    inner = opened("smtp://localhost")
    register("carrier+pigeon", lambda url: inner)
    assert open_transport("main", "carrier+pigeon://loft") is inner
    with pytest.raises(ConfigurationError, match=r"carrier\+pigeon, maildir"):
        open_transport("main", "gopher://h")
