"""How transports log in by OAuth: a person's login, by the device flow (RFC 8628) or with a refresh token from
elsewhere; what is checked when a worker starts; and what `effects doctor` says.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Literal

from effects import ConfigurationError, Effects
from effects.extend.actions import AuditAction, DoctorFinding, note
from effects.extend.jobs import ensure_limit, unblock_limit
from effects.extend.process import lazy
from effects_email.errors import LoginFailed
from effects_email.oauth.keeper import TokenLogin
from effects_email.oauth.registration import OAuthClient, Tokens
from effects_email.routing import transport_key
from effects_email.state import state_of
from effects_email.tables import transports as table
from effects_email.tables.transports import TokenState

with lazy.modules(__name__):
    from effects_email.oauth import service
    from effects_email.transport.smtp import transport as smtp_transport

LOGIN = AuditAction("transport", "login")
_SLOWER_SECONDS = 5.0  # after slow_down (RFC 8628, section 3.5)
_RUN_OUT = "no one has typed the code in time: begin again"
_REFUSED = "whoever typed the code has refused the login: begin again"
# RFC 8628, section 3.5; and Microsoft's word for a refusal.
_DECIDED = {
    "oauth_access_denied": _REFUSED, "oauth_authorization_declined": _REFUSED, "oauth_expired_token": _RUN_OUT,
}  # fmt: skip
# Hosts of SMTP → what their operators have said of passwords.
PASSWORDS_END = {
    "smtp.office365.com": "Microsoft turns passwords for SMTP off at the end of December 2026",
    "smtp-mail.outlook.com": "Microsoft has turned passwords for SMTP off",
    "smtp-legacy.office365.com": "Microsoft turns passwords for SMTP off at the end of December 2026",
    "smtp.gmail.com": "Google takes app passwords only, and not from every account",
}
_MEND = "the transport is paused between attempts; docs/email-oauth.md has the causes"


def client_of(app: Effects, transport: str) -> OAuthClient:
    """The transport's OAuth client.

    Raises:
        ConfigurationError: the transport is not set, does not log in as a person, or EFFECTS_KEYS has no key.
        StoreUnavailable: the database is unavailable: before a person has done anything in vain.
    """
    login = state_of(app).transports.token_login(transport)
    source = None if login is None else login.source
    if not isinstance(source, OAuthClient) or not source.needs_login:
        raise ConfigurationError(
            f"the mail transport {transport!r} needs no login: one that does has a URL such as "
            "smtp+starttls+oauth://user%40shop.example@smtp.office365.com:587?provider=microsoft&client_id=…"
        )
    _check_key(app, transport)
    with app.store.read() as connection:
        table.find_token(app.store, connection, transport)
    return source


def begin_device_login(client: OAuthClient) -> service.DeviceCode:
    """Ask the token service for a code for a person.

    Raises:
        LoginFailed: it gives none, or the client's URL names no device endpoint.
    """
    if not client.device_url:
        raise LoginFailed(
            "this token service has no device flow for mail: give a refresh token with --refresh-token, or device_url= "
            "in the transport's URL"
        )
    code = service.request_device_code(client, service.device_request(client))
    if not isinstance(code, service.DeviceCode):
        raise LoginFailed(f"{code.reason} [{code.code}]")
    return code


def await_device_login(client: OAuthClient, code: service.DeviceCode, wait: Callable[[float], object]) -> Tokens:
    """Ask until the person has decided.

    Args:
        wait: waits for so many seconds.

    Raises:
        LoginFailed: the person refuses, the code has run out, or the service refuses the client.
    """
    interval, deadline, fault = code.interval, time.monotonic() + code.seconds, ""
    while time.monotonic() < deadline:
        wait(interval)
        answer = service.request_tokens(client, service.device_token(client, code.device_code))
        if isinstance(answer, Tokens):
            return answer
        if answer.code == "slow_down":
            interval += _SLOWER_SECONDS
        elif answer.code in _DECIDED:
            raise LoginFailed(f"{_DECIDED[answer.code]} [{answer.code}]")
        elif answer.kind != "unavailable":
            raise LoginFailed(f"{answer.reason} [{answer.code}]")
        is_pending = answer.code in ("slow_down", "authorization_pending")
        fault = "" if is_pending else f" (the last request failed: {answer.reason} [{answer.code}])"
    raise LoginFailed(f"{_RUN_OUT}{fault}")


def redeem(client: OAuthClient, refresh_token: str) -> Tokens:
    """Get the first access token for a refresh token from elsewhere.

    Raises:
        LoginFailed: the service does not accept it.
    """
    answer = service.request_tokens(client, service.renewal(client, refresh_token))
    if not isinstance(answer, Tokens):
        raise LoginFailed(f"{answer.reason} [{answer.code}]")
    return Tokens(answer.access, answer.refresh or refresh_token, answer.seconds)


def save_login(
    app: Effects, transport: str, client: OAuthClient, tokens: Tokens, *, actor: str, reason: str | None
) -> None:
    """Store the tokens, and end a pause of the transport. A crash before the commit leaves everything as it was.

    Raises:
        LoginFailed: the service has given no refresh token, so that the login would end with the access token.
        KeyUnavailable: EFFECTS_KEYS holds no key.
    """
    if tokens.refresh is None:
        raise LoginFailed("the token service gives no refresh token: ask for one by the scope (offline_access)")
    with app.store.begin() as connection:
        state_of(app).keeper.save(connection, transport, client, tokens)
        ensure_limit(app.store, connection, transport_key(transport))
        unblock_limit(app.store, connection, transport_key(transport))
        note(app.store, connection, LOGIN, transport, actor=actor, reason=reason)


def token_login_of(app: Effects, transport: str) -> TokenLogin:
    """How a transport that logs in by access tokens gets them.

    Raises:
        ConfigurationError: it is not set, or logs in otherwise.
    """
    login = state_of(app).transports.token_login(transport)
    if login is None:
        raise ConfigurationError(f"the mail transport {transport!r} does not log in by OAuth")
    return login


def check_logins(app: Effects) -> None:
    """Check that every transport that logs in by OAuth could, without asking a token service.

    Raises:
        ConfigurationError: EFFECTS_KEYS has no key to seal tokens with, or a key file cannot be used.
    """
    transports = state_of(app).transports
    for login in filter(None, map(transports.token_login, transports.names())):
        if isinstance(login.source, OAuthClient):
            _check_key(app, login.transport)
            service.check_files(login.source)


def _check_key(app: Effects, transport: str) -> None:
    if not app.keys.ids:
        raise ConfigurationError(
            f"the mail transport {transport!r} logs in by OAuth, and EFFECTS_KEYS has no key to encrypt its tokens "
            "with: run `effects keys generate` and set what it prints"
        )


def examine_logins(app: Effects) -> Iterator[DoctorFinding]:
    """How each transport logs in, and until when it can; passwords at hosts that are known to end them."""
    with app.store.read() as connection:
        states = {state.transport: state for state in table.token_states(app.store, connection)}
    transports = state_of(app).transports
    for name in transports.names():
        try:
            transport = transports.get(name)
        except ConfigurationError:
            continue  # `worker_starts` names it
        if isinstance(transport, smtp_transport.SmtpTransport):
            yield _examined(transport, states.get(name))


def _examined(transport: smtp_transport.SmtpTransport, state: TokenState | None) -> DoctorFinding:
    name, login = transport.name, transport.login
    if not isinstance(login, TokenLogin):
        ending = next((whose for host, whose in PASSWORDS_END.items() if transport.host.endswith(host)), None)
        if login is not None and ending is not None:
            advice = "use OAuth: docs/email-oauth.md"
            return _finding("warning", f"{name} logs in by a password at {transport.host}: {ending}", advice)
        return _finding("ok", f"{name} {'needs no login' if login is None else 'logs in by a password'}")
    if not isinstance(login.source, OAuthClient):
        return _finding("ok", f"{name} logs in by a token that another program renews")
    if state is None or state.client != login.source.digest or state.version == 0:
        if login.source.needs_login:
            return _finding("error", f"{name} has no login by OAuth", f"run `effects email login {name}`")
        return _finding("ok", f"{name} logs in by OAuth and has no token yet")
    if state.failure is not None:
        return _finding("error", f"{name}: {state.failure_reason or state.failure} [{state.failure}]", _MEND)
    until = "" if state.expires_at is None else f"; its token ends at {state.expires_at:%Y-%m-%d %H:%M:%SZ}"
    return _finding("ok", f"{name} logs in by OAuth as {login.source.user}{until}")


def _finding(level: Literal["ok", "warning", "error"], text: str, advice: str | None = None) -> DoctorFinding:
    return DoctorFinding("mail logins", level, text, advice)
