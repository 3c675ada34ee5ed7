"""Our requests to a token service, judged by an independent one: oidc-provider of npm, certified for OpenID Connect."""

from __future__ import annotations

import re
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest
import trustme

from effects_email.errors import LoginFailed
from effects_email.oauth import service
from effects_email.oauth.logins import await_device_login, begin_device_login, redeem
from effects_email.oauth.registration import Tokens
from effects_email.state import state_of
from tests.conftest import AppFactory
from tests.email.wire.conftest import SigningKey, new_signing_key
from tests.support import needs

KEY = "k1=" + "A" * 43 + "="
CREDENTIALS = {
    "daemon": ":s3cret", "daemon with another secret": ":wrong", "confidential": ":s3cret",
}  # fmt: skip
SCRIPT = Path(__file__).parents[2] / "peers" / "oidc_provider.mjs"


@pytest.fixture(scope="module")
def issuer(authority: trustme.CA, signing_key: SigningKey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The provider's address."""
    certificate = tmp_path_factory.mktemp("oidc") / "server.pem"
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(certificate))
    files = [str(certificate), str(signing_key.certificate)]
    command = [needs.program("node"), str(SCRIPT), needs.npm("oidc-provider"), *files]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield next(line.strip() for line in process.stdout if line.startswith("https://"))
        finally:
            process.kill()


@pytest.fixture
def client(
    request: pytest.FixtureRequest,
    issuer: str,
    ca_file: Path,
    app_factory: AppFactory,
    signing_key: SigningKey,
    tmp_path: Path,
) -> Any:
    """The OAuth client of the provider's client by this name."""
    name = request.param
    credentials = CREDENTIALS.get(name, "")
    url = (
        f"smtps+oauth://shop{credentials}@localhost?token_network=private&token_ca_file={ca_file}"
        f"&client_id={name.split()[0]}&token_url={quote(issuer + '/token')}"
        f"&device_url={quote(issuer + '/device/auth')}"
    )
    is_person = name.split()[0] in ("person", "confidential")
    url += "&scope=" + quote("openid offline_access mail") if is_person else "&grant=client&scope=mail"
    if name.startswith("signer"):
        key = signing_key if name == "signer" else new_signing_key(tmp_path)
        url += f"&assertion_key={key.key}&assertion_certificate={key.certificate}"
    app = app_factory(job_types=[], keys=KEY, smtp_url=url)
    login = state_of(app).transports.token_login("default")
    assert login is not None
    return login.source


def ask(client: Any) -> object:
    """As a renewal without a refresh token does."""
    return service.request_tokens(client, service.renewal(client, None))


@pytest.mark.parametrize("client", ["daemon", "signer"], indirect=True)
def test_client_credentials(client: Any) -> None:
    tokens = ask(client)
    assert isinstance(tokens, Tokens)
    assert (bool(tokens.access), tokens.refresh, tokens.seconds) == (True, None, 3600)


@pytest.mark.parametrize("client", ["daemon with another secret", "signer with another key"], indirect=True)
def test_wrong_credentials(client: Any) -> None:
    failure = ask(client)
    assert (failure.kind, failure.code) == ("config", "oauth_invalid_client")  # type: ignore[attr-defined]


def decided(client: Any, issuer: str, ca_file: Path, how: str) -> Tokens:
    """A login by a code that is typed after a while, and decided so."""
    code = begin_device_login(client)
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:  # the first answer was `authorization_pending`
            request = Request(f"{issuer}/{how}?user_code={code.user_code}", method="POST")
            with urlopen(request, context=ssl.create_default_context(cafile=str(ca_file))) as response:
                assert response.read() == b"done"

    try:
        return await_device_login(client, code, wait)
    finally:
        assert len(waits) == 2


@pytest.mark.parametrize("client", ["person"], indirect=True)
@pytest.mark.parametrize(("how", "words"), [
    ("deny", "has refused the login: begin again [oauth_access_denied]"),
    ("expire", "typed the code in time: begin again [oauth_expired_token]"),
])  # fmt: skip
def test_a_code_that_comes_to_nothing(how: str, words: str, client: Any, issuer: str, ca_file: Path) -> None:
    with pytest.raises(LoginFailed, match=re.escape(words)):
        decided(client, issuer, ca_file, how)


@pytest.mark.parametrize("client", ["confidential of no one"], indirect=True)
def test_a_confidential_client_gets_no_code_without_its_secret(client: Any) -> None:
    with pytest.raises(LoginFailed, match="oauth_invalid_client"):
        begin_device_login(client)


@pytest.mark.parametrize("client", ["person", "confidential"], indirect=True)
def test_a_persons_login_and_its_renewals(client: Any, issuer: str, ca_file: Path) -> None:
    first = decided(client, issuer, ca_file, "approve")
    assert first.refresh is not None
    second = redeem(client, first.refresh)
    assert second.refresh not in (None, first.refresh)
    assert second.access != first.access
    with pytest.raises(LoginFailed, match="oauth_invalid_grant"):
        redeem(client, first.refresh)  # used before: the provider takes it for stolen
