"""A mail server that takes access tokens only, the token service that it trusts, and processes that log in there."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import sqlalchemy as sa

from effects import Effects
from effects_email.oauth.logins import client_of, redeem, save_login
from effects_email.state import state_of
from effects_email.transport.base import SendResult
from tests.conftest import AppFactory
from tests.email.wire.conftest import Released, outgoing_message
from tests.peers.http import Answer
from tests.peers.smtp import SmtpPeer
from tests.peers.tokens import TokenService

KEY, NEXT_KEY = "k1=" + "A" * 43 + "=", "k2=" + "B" * 43 + "="
USER = "shop@shop.example"
LIFETIME = 3600


@dataclass
class Relay:
    """A mail server and the token service that it trusts."""

    peer: SmtpPeer
    tokens: TokenService
    ca_file: Path
    app_factory: AppFactory

    def url(self, options: str = "", *, scheme: str = "smtp+starttls+oauth", secret: str = "") -> str:
        return f"{scheme}://{quote(USER)}{secret}@localhost:{self.peer.port}?ca_file={self.ca_file}{options}"

    def client_options(self) -> str:
        return (
            f"&client_id=app&scope=mail&token_url={quote(self.tokens.url)}&device_url={quote(self.tokens.device_url)}"
            f"&token_ca_file={self.ca_file}&token_network=private"
        )

    def process(self, options: str = "", *, keys: str = KEY, secret: str = "") -> Effects:
        """Another process of the same app."""
        return self.app_factory(
            job_types=[], keys=keys, email_from="Shop <a@shop.example>",
            smtp_url=self.url(self.client_options() + options, secret=secret),
        )  # fmt: skip

    def logged_in(self, app: Effects) -> Effects:
        """After a person's login with a refresh token from elsewhere."""
        client = client_of(app, "default")
        tokens = redeem(client, self.tokens.issue_refresh_token())
        save_login(app, "default", client, tokens, actor="test", reason=None)
        return app

    def renewals(self) -> int:
        """How often tokens were asked for."""
        return len(self.tokens.given)


@pytest.fixture
def relay(app_factory: AppFactory, server_tls: ssl.SSLContext, ca_file: Path) -> Iterator[Relay]:
    with (
        TokenService(server_tls, seconds=LIFETIME) as tokens,
        SmtpPeer(tls=server_tls, accepts=tokens.accepts) as peer,
    ):
        yield Relay(peer, tokens, ca_file, app_factory)


def send(app: Effects) -> SendResult:
    """One message, over a session of its own."""
    transport = state_of(app).transports.get("default")
    try:
        return transport.send(outgoing_message(), release=Released(), seconds=20)
    finally:
        transport.close()


def said(app: Effects) -> tuple[str, str]:
    verdict = send(app).verdict
    return verdict.kind, verdict.code


def stored(app: Effects) -> Any:
    with app.engine.connect() as connection:
        return connection.execute(sa.text("SELECT * FROM effects_email_tokens")).one()


def answer(status: int, **fields: object) -> Answer:
    return Answer(status, json.dumps(fields).encode())
