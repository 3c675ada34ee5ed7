"""Letters and transports of the wire tests."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa

from effects_email.message.source import Address, MessageSource
from effects_email.transport.base import OutgoingMessage, Transport
from effects_email.transport.url import open_transport
from tests.peers.smtp import TOKEN
from tests.support.sampling import sample

ANN, BEN, CAT = "ann@example.org", "ben@example.org", "cat@example.org"
SENDER = "shop@example.com"
BODY = b"Subject: hello\r\n\r\n.a dot\r\n..two\r\nlast line\r\n"
PATIENCE = "timeout=2&connect_timeout=2&answer_timeout=1"

Opened: TypeAlias = Callable[..., Transport]


def outgoing_message(*recipients: str, data: bytes = BODY, utf8: bool = False, sender: str = SENDER) -> OutgoingMessage:
    """A message to these (default: Ann)."""
    to = recipients or (ANN,)
    source = MessageSource(
        message_id="1@example.com",
        date=datetime(2026, 11, 21, tzinfo=UTC),
        sender=Address("shop", "example.com"),
        to=tuple(Address(*recipient.rsplit("@", 1)) for recipient in to if "@" in recipient),
        subject="hello",
        text="hello",
    )
    return OutgoingMessage(
        sender=sender, recipients=to, data=data, source=source, message_id="1@example.com", key="k", utf8=utf8
    )


class Released:
    """A `release` that counts its calls, and raises what it is told to."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.calls = 0
        self._error = error

    def __call__(self) -> None:
        self.calls += 1
        if self._error is not None:
            raise self._error


@pytest.fixture
def opened() -> Iterator[Opened]:
    """`opened(peer.url)`: a transport that waits a second or two; closed at the end."""
    transports: list[Transport] = []

    def open_one(url: str, options: str = PATIENCE) -> Transport:
        transports.append(open_transport("test", f"{url}{'&' if '?' in url else '?'}{options}" if options else url))
        return transports[-1]

    yield open_one
    for transport in transports:
        transport.close()


# What is written of the wire holds with each of them: one is drawn by the seed; by `make soak` both.
@pytest.fixture(params=sample(["password", "token"], 1))
def login(request: pytest.FixtureRequest) -> str:
    """How to log in."""
    return str(request.param)


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    """The access token that a peer without accounts takes, as another program has left it."""
    file = tmp_path / "token"
    file.write_text(TOKEN)
    return file


@pytest.fixture
def opened_with_login(opened: Opened, login: str, token_file: Path) -> Opened:
    """As `opened`; at a peer where no one need log in, by a token all the same, if that is how."""

    def open_one(url: str, options: str = PATIENCE) -> Transport:
        address = url.removeprefix("smtp://localhost:")
        if login == "token" and address != url and "@" not in address:
            port, _, more = address.partition("?")
            url = f"smtp+oauth+file://shop@localhost:{port}?path={token_file}{'&' if more else ''}{more}"
        return opened(url, options)

    return open_one


@pytest.fixture(scope="session")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="session")
def ca_file(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The authority's certificate, for `?ca_file=`."""
    path = tmp_path_factory.mktemp("ca") / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return path


@pytest.fixture(scope="session")
def server_tls(authority: trustme.CA) -> ssl.SSLContext:
    """A server's context with a certificate for localhost."""
    return server_context(authority, "localhost")


def server_context(authority: trustme.CA, name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    return context


@dataclass(frozen=True)
class SigningKey:
    """The files of a private key and its certificate, with which an OAuth client signs, and the public key."""

    key: Path
    certificate: Path
    public: rsa.RSAPublicKey


def new_signing_key(folder: Path) -> SigningKey:
    issued = trustme.CA().issue_cert("app.example", key_type=trustme.KeyType.RSA)
    issued.private_key_pem.write_to_path(str(folder / "key.pem"))
    issued.cert_chain_pems[0].write_to_path(str(folder / "cert.pem"))
    public = x509.load_pem_x509_certificate((folder / "cert.pem").read_bytes()).public_key()
    assert isinstance(public, rsa.RSAPublicKey)
    return SigningKey(folder / "key.pem", folder / "cert.pem", public)


@pytest.fixture(scope="session")
def signing_key(tmp_path_factory: pytest.TempPathFactory) -> SigningKey:
    return new_signing_key(tmp_path_factory.mktemp("signing"))
