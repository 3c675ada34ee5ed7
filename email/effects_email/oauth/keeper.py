"""The access tokens of one Effects, shared with its other processes by a row for each transport.

A token is renewed at 80 % of its lifetime, by the process that leases the row; the others go on with the one that is
still good, or wait. What a renewal brings is committed before it is used:

    killed before the request       nothing has changed; the lease ends after 20 s, and another process renews
    killed during the request       the same. Where the service gives a new refresh token and drops the old one at that
                                    moment, the new one is lost with its response: `effects email login` is needed. No
                                    client can prevent that; services therefore accept the old one for a while
    killed after the commit         others read the new token

The refresh token before the newest one is kept until the newest has worked, and is tried where that is refused.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

from sqlalchemy import Connection, Row

from effects import ConfigurationError, Effects, KeyUnavailable, StoreRejected, StoreUnavailable
from effects.extend.process import declare, lazy, point
from effects.extend.secrets import SealedColumn, SealInvalid
from effects_email.oauth.registration import (
    Bearer,
    OAuthClient,
    TokenFailure,
    Tokens,
    TokenSource,
    TokenUnavailable,
    external_token,
)
from effects_email.tables import transports as table

with lazy.modules(__name__):
    from effects_email.oauth import service

RENEW_SHARE = 0.8
LEASE_SECONDS = 20.0  # twice what a request may take
FAILED_SECONDS, CONFIG_SECONDS = 5.0, 60.0  # that no process asks again after a failure
AFTER_SECONDS_MAX = 900.0  # where the service names a time itself
_REREAD_SECONDS = 5.0
_POLL_SECONDS = 0.1
_FIELDS = ("access", "refresh", "previous")

declare({
    "email.token.leased": "the token's row is leased; the token service has not been asked",
    "email.token.answered": "the token service has answered; nothing of that is stored",
    "email.token.committed": "the new tokens are committed, and not used yet",
})  # fmt: skip

_Request: TypeAlias = tuple[str | None, dict[str, str]]  # a refresh token and the form with it


@dataclass(frozen=True)
class _Cached:
    bearer: Bearer
    renew_at: float  # monotonic, as `ends_at`
    ends_at: float


@dataclass(frozen=True)
class _Renewal:
    """What the token service gave for a version of the row, and for which refresh token."""

    client: OAuthClient
    version: int
    tokens: Tokens
    used: str | None = field(repr=False)


class TokenKeeper:
    """Gives access tokens. Thread-safe: of this process's threads one at a time looks for a transport's token."""

    def __init__(self, app: Effects) -> None:
        self._app = app
        self._cached: dict[str, _Cached] = {}
        self._locks: dict[str, threading.Lock] = {}  # by transports, which are those of the settings
        self._uncommitted: dict[str, _Renewal] = {}

    def bearer(self, transport: str, client: OAuthClient, *, seconds: float) -> Bearer:
        """Give the transport's access token, renewed if it is due.

        Args:
            seconds: the longest wait for another process's renewal.

        Raises:
            TokenUnavailable: no token can be had now.
        """
        try:
            return self._cached_bearer(transport) or self._renewed_bearer(transport, client, seconds)
        except (StoreUnavailable, StoreRejected) as error:
            raise _unavailable("oauth_database", "the tokens cannot be read or written now") from error
        except (KeyUnavailable, SealInvalid) as error:
            raise TokenUnavailable(_unusable(error)) from None

    def refused(self, transport: str, bearer: Bearer) -> bool:
        """A server has refused this token: whether another one may do. Each token is renewed at most once for that."""
        self._cached.pop(transport, None)
        try:
            with self._app.store.begin() as connection:
                if table.refuse_token(self._app.store, connection, transport, version=bearer.version):
                    return True
                row = table.find_token(self._app.store, connection, transport)
        except (StoreUnavailable, StoreRejected):
            return False
        return row is not None and row.version > bearer.version

    def accepted(self, transport: str, bearer: Bearer) -> None:
        """A server has accepted it. Writes only of a token that replaced a refused one, and once in each process."""
        if not bearer.replaced_refused:
            return
        cached = self._cached.get(transport)
        if cached is not None and cached.bearer == bearer:
            self._cached[transport] = replace(cached, bearer=replace(bearer, replaced_refused=False))
        try:
            with self._app.store.begin() as connection:
                table.accept_token(self._app.store, connection, transport, version=bearer.version)
        except (StoreUnavailable, StoreRejected):
            return  # the next refusal of this token is not followed by a renewal before it is due

    def save(self, connection: Connection, transport: str, client: OAuthClient, tokens: Tokens) -> None:
        """Write the tokens of a new login, in the caller's transaction, whatever the row holds.

        Raises:
            KeyUnavailable: EFFECTS_KEYS holds no key.
        """
        written = False
        while not written:
            version = self._begin(connection, transport, client).version
            written = self._write(connection, transport, client, version, tokens, refresh=tokens.refresh, previous=None)
        self._cached.pop(transport, None)

    # -- this process's --------------------------------------------------------------------------------------

    def _cached_bearer(self, transport: str, *, is_due: bool = False) -> Bearer | None:
        """What this process knows; with `is_due` also while it is to be renewed."""
        cached = self._cached.get(transport)
        if cached is None or time.monotonic() >= (cached.ends_at if is_due else cached.renew_at):
            return None
        return cached.bearer

    def _renewed_bearer(self, transport: str, client: OAuthClient, seconds: float) -> Bearer:
        """One thread looks; others go on with a token that is still good, or wait for it."""
        lock = self._locks.setdefault(transport, threading.Lock())
        if not lock.acquire(blocking=False):
            if (bearer := self._cached_bearer(transport, is_due=True)) is not None:
                return bearer
            if not lock.acquire(timeout=max(seconds, 0.0)):
                raise _unavailable("oauth_renewing", "the token has been renewed for too long")
        try:
            return self._cached_bearer(transport) or self._current(transport, client, time.monotonic() + seconds)
        finally:
            lock.release()

    # -- renewal ---------------------------------------------------------------------------------------------

    def _current(self, transport: str, client: OAuthClient, deadline: float) -> Bearer:
        self._commit(transport, deadline)
        renewed: int | None = None  # the version that this call waited for: it is used however short its life is
        while True:
            row = self._row(transport, client)
            is_fresh = row.version == renewed
            is_good = row.client == client.digest and not row.refused and (row.seconds_left > 0 or is_fresh)
            if is_good and (row.renew_seconds > 0 or is_fresh):
                return self._keep(transport, client, row)
            if not is_good and client.needs_login and (row.client != client.digest or row.refresh is None):
                raise TokenUnavailable(_with_advice(_login_needed(), transport, client))
            try:
                if row.lease_seconds <= 0 and self._renew(transport, client, row, deadline):
                    renewed = row.version + 1
                    continue
            except TokenUnavailable:
                if not is_good:
                    raise
            if is_good:
                return self._keep(transport, client, row)
            _check_waiting(row, deadline)
            threading.Event().wait(_POLL_SECONDS)

    def _row(self, transport: str, client: OAuthClient) -> table.TokenRow:
        with self._app.store.read() as connection:
            row = table.find_token(self._app.store, connection, transport)
        if row is not None:
            return row
        with self._app.store.begin() as connection:
            return self._begin(connection, transport, client)

    def _begin(self, connection: Connection, transport: str, client: OAuthClient) -> table.TokenRow:
        table.begin_token(self._app.store, connection, transport, client=client.digest)
        row = table.find_token(self._app.store, connection, transport)
        assert row is not None
        return row

    def _keep(self, transport: str, client: OAuthClient, row: table.TokenRow) -> Bearer:
        """Its token; kept in this process until it is due."""
        token = self._open(transport, "access", row.access)
        assert token is not None
        bearer = Bearer(client.user, token, row.version, row.for_refused)
        now = time.monotonic()
        self._cached[transport] = _Cached(bearer, now + row.renew_seconds, now + row.seconds_left)
        return bearer

    def _lease(self, transport: str, version: int) -> bool:
        with self._app.store.begin() as connection:
            return table.lease_token(self._app.store, connection, transport, version=version, seconds=LEASE_SECONDS)

    def _renew(self, transport: str, client: OAuthClient, row: table.TokenRow, deadline: float) -> bool:
        """Ask with each refresh token, the newest first, and commit the answer.

        False where another process has the lease, or may have it by now, as this one stood still: a refresh token that
        is used twice makes many services revoke the login (RFC 9700, section 4.14.2).

        Raises:
            TokenUnavailable: the service gives none, or this process cannot ask it.
        """
        try:
            requests = self._requests(transport, client, row)
        except (KeyUnavailable, SealInvalid, ConfigurationError) as error:
            raise TokenUnavailable(_unusable(error)) from None  # of this process: the row is left to those that can
        leased_until = time.monotonic() + LEASE_SECONDS
        if not self._lease(transport, row.version):
            return False
        point("email.token.leased")
        failure = _login_needed()
        for refresh, form in requests:
            if time.monotonic() + service.SECONDS > leased_until:
                return False
            answer = service.request_tokens(client, form)
            point("email.token.answered")
            if isinstance(answer, Tokens):
                self._uncommitted[transport] = _Renewal(client, row.version, answer, refresh)
                self._commit(transport, deadline)
                return True
            failure = _with_advice(answer, transport, client)
            if answer.kind != "login_needed":
                break
        if time.monotonic() > leased_until:
            return False
        self._fail(transport, row.version, failure)
        raise TokenUnavailable(failure)

    def _requests(self, transport: str, client: OAuthClient, row: table.TokenRow) -> list[_Request]:
        """The refresh tokens that are to be tried, with the forms; None stands for a request without one.

        Raises:
            KeyUnavailable, SealInvalid: they cannot be opened, or what comes could not be sealed.
            ConfigurationError: a key file of the client cannot be used.
        """
        if not self._app.keys.ids:
            raise KeyUnavailable("EFFECTS_KEYS is not set, so no token can be stored: run `effects keys generate`")
        tokens: list[str | None] = [None]
        if client.needs_login:
            stored = (self._open(transport, "refresh", row.refresh), self._open(transport, "previous", row.previous))
            tokens = [token for token in stored if token is not None]
        return [(token, service.renewal(client, token)) for token in tokens]

    def _commit(self, transport: str, deadline: float) -> None:
        """Write what a renewal brought, again and again while the database is down, and with the next call after that:
        it may hold the only refresh token that is still good. The one that has just worked is kept beside a new one.
        """
        while (renewal := self._uncommitted.get(transport)) is not None:
            tokens, used = renewal.tokens, renewal.used
            is_new = tokens.refresh is not None and tokens.refresh != used
            refresh, previous = (tokens.refresh, used) if is_new else (used, None)
            try:
                with self._app.store.begin() as connection:
                    self._write(connection, transport, renewal.client, renewal.version, tokens, refresh=refresh,
                                previous=previous)  # fmt: skip
            except (StoreUnavailable, StoreRejected):  # rejected: a full disk, say
                if time.monotonic() > deadline:
                    raise
                threading.Event().wait(_POLL_SECONDS)
            else:
                del self._uncommitted[transport]
                point("email.token.committed")

    def _write(
        self, connection: Connection, transport: str, client: OAuthClient, version: int, tokens: Tokens, *,
        refresh: str | None, previous: str | None,
    ) -> bool:  # fmt: skip
        access = self._seal(transport, "access", tokens.access)
        return table.renew_token(
            self._app.store, connection, transport, client=client.digest, version=version, access=access,
            refresh=None if refresh is None else self._seal(transport, "refresh", refresh),
            previous=None if previous is None else self._seal(transport, "previous", previous),
            seconds_left=tokens.seconds, renew_seconds=tokens.seconds * RENEW_SHARE,
        )  # fmt: skip

    def _fail(self, transport: str, version: int, failure: TokenFailure) -> None:
        usual = FAILED_SECONDS if failure.kind == "unavailable" else CONFIG_SECONDS
        with self._app.store.begin() as connection:
            table.fail_token(
                self._app.store, connection, transport, version=version, kind=failure.kind, code=failure.code,
                reason=failure.reason, seconds=max(min(failure.after_seconds or 0.0, AFTER_SECONDS_MAX), usual),
            )  # fmt: skip

    def _seal(self, transport: str, field: str, token: str) -> bytes:
        return self._app.keys.seal(token.encode(), **_context(transport, field))

    def _open(self, transport: str, field: str, sealed: bytes | None) -> str | None:
        return None if sealed is None else self._app.keys.open(sealed, **_context(transport, field)).decode()


@dataclass(frozen=True)
class TokenLogin:
    """Access tokens of one transport; `keeper` renews them where the source is an OAuth client."""

    transport: str
    source: TokenSource
    keeper: TokenKeeper | None = field(repr=False)

    def credentials(self, seconds: float) -> Bearer:
        """See `TokenKeeper.bearer`."""
        if isinstance(self.source, OAuthClient):
            assert self.keeper is not None
            return self.keeper.bearer(self.transport, self.source, seconds=seconds)
        return Bearer(self.source.user, external_token(self.source, seconds))

    def refused(self, credentials: object) -> bool:
        """Whether there may be another one; that of a file or a command has been replaced meanwhile, or has not."""
        if not isinstance(credentials, Bearer):
            return False
        if self.keeper is not None:
            return self.keeper.refused(self.transport, credentials)
        try:
            return self.credentials(_REREAD_SECONDS) != credentials
        except TokenUnavailable:
            return False

    def accepted(self, credentials: object) -> None:
        """See `TokenKeeper.accepted`."""
        if self.keeper is not None and isinstance(credentials, Bearer):
            self.keeper.accepted(self.transport, credentials)


def sealed_columns() -> list[SealedColumn]:
    """What `effects keys` counts and rotates."""
    return [
        SealedColumn(
            table="email_tokens", column=name, id_column="transport", columns=(), context=partial(_context_of, name)
        )
        for name in _FIELDS
    ]


def _context_of(field: str, row: Row[Any]) -> dict[str, str]:
    return _context(row.id, field)


def _context(transport: str, field: str) -> dict[str, str]:
    return {"table": "email_tokens", "row": transport, "field": field}


def _unavailable(code: str, reason: str) -> TokenUnavailable:
    return TokenUnavailable(TokenFailure("unavailable", code, reason))


def _unusable(error: Exception) -> TokenFailure:
    return TokenFailure("config", "oauth_unusable", str(error))


def _login_needed() -> TokenFailure:
    return TokenFailure("login_needed", "oauth_login_needed", "no login yet")


def _with_advice(failure: TokenFailure, transport: str, client: OAuthClient) -> TokenFailure:
    """Who can mend it: a person who logs in, or whoever registered the application, where no person does."""
    if failure.kind != "login_needed":
        return failure
    if client.needs_login:
        reason = f"{failure.reason}: run `effects email login {transport}`"
        return TokenFailure(failure.kind, failure.code, reason, failure.after_seconds)
    advice = "check the application's key, its permissions, and this machine's clock"
    return TokenFailure("config", failure.code, f"{failure.reason}: {advice}", failure.after_seconds)


def _check_waiting(row: table.TokenRow, deadline: float) -> None:
    """
    Raises:
        TokenUnavailable: another process has failed a moment ago, or takes too long.
    """
    if row.failure is not None and row.failure_kind is not None and row.lease_seconds > 0:
        failure = TokenFailure(row.failure_kind, row.failure, row.failure_reason or "", row.lease_seconds)
        raise TokenUnavailable(failure)
    if time.monotonic() > deadline:
        raise _unavailable("oauth_renewing", "another process has been renewing the token for too long")
