"""A token service (RFC 6749, 8628) over TLS on loopback, and what a mail server asks it about a token."""

from __future__ import annotations

import itertools
import json
import ssl
import threading
import time
from collections.abc import Iterable
from urllib.parse import parse_qs

from tests.peers.http import Answer, Receiver, Request


class TokenService(Receiver):
    """`with TokenService(context, seconds=5) as tokens: … tokens.url … tokens.accepts(user, token)`.

    Args:
        seconds: how long an access token is good.
        rotates: every renewal gives a new refresh token, and the one before is good no more; with `keeps_last`, it is
            good until the new one is used.
        revokes_reused: a refresh token that is used twice ends the login (RFC 9700, section 4.14.2).
        faults: answers instead of its own, one a request, until they are used up.
    """

    def __init__(
        self, ssl_context: ssl.SSLContext, *, seconds: float = 3600, rotates: bool = True,
        keeps_last: bool = False,
        faults: Iterable[Answer] = (), client_secret: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(self._answer, ssl_context=ssl_context)
        self.url = f"https://localhost:{self.port}/token"
        self.device_url = f"https://localhost:{self.port}/device"
        self.seconds, self.client_secret = seconds, client_secret
        self.rotates, self.keeps_last, self.revokes_reused = rotates, keeps_last, False
        self.faults = list(faults)
        self.refresh_tokens: set[str] = set()
        self.given: list[str] = []  # access tokens, in order
        self.revoked: set[str] = set()
        self.pending: list[str] = []  # errors of a device code, before the person has decided
        self.device_code = f"device-1-{'d' * 40}"
        self.slow_seconds = 0.0  # that its own answers take
        self.given_at: list[float] = []  # monotonic, of each access token
        self._ends: dict[str, float] = {}
        self._numbers = itertools.count(1)
        self._state = threading.Lock()

    def accepts(self, token: str) -> bool:
        """Whether a mail server may let its bearer in."""
        with self._state:
            return token not in self.revoked and time.monotonic() < self._ends.get(token, 0.0)

    def issue_refresh_token(self) -> str:
        """As a person's login does."""
        with self._state:
            return self._new_refresh_token()

    def forms(self) -> list[dict[str, str]]:
        """The fields of every request, in order."""
        return [_form(request) for request in list(self.requests)]

    def _answer(self, request: Request) -> Answer:
        with self._state:
            if self.faults:
                return self.faults.pop(0)
        threading.Event().wait(self.slow_seconds)
        with self._state:
            form = _form(request)
            if request.path == "/device":
                return _json(200, device_code=self.device_code, user_code="ABCD-EFGH", interval=1, expires_in=60,
                             verification_uri="https://login.example/device")  # fmt: skip
            return self._granted(form)

    def _granted(self, form: dict[str, str]) -> Answer:
        if self.client_secret is not None and form.get("client_secret") != self.client_secret:
            return _json(401, error="invalid_client")
        match form["grant_type"]:
            case "client_credentials" | "urn:ietf:params:oauth:grant-type:jwt-bearer":
                return self._tokens(None)
            case "urn:ietf:params:oauth:grant-type:device_code":
                if self.pending:
                    return _json(400, error=self.pending.pop(0))
                return self._tokens(self._new_refresh_token())
            case "refresh_token" if form["refresh_token"] in self.refresh_tokens:
                if not self.rotates:
                    return self._tokens(None)
                self.refresh_tokens.intersection_update({form["refresh_token"]} if self.keeps_last else ())
                return self._tokens(self._new_refresh_token())
            case _:
                if self.revokes_reused:
                    self.refresh_tokens.clear()
                return _json(400, error="invalid_grant")

    def _new_refresh_token(self) -> str:
        token = f"refresh-{next(self._numbers)}-{'r' * 40}"
        self.refresh_tokens.add(token)
        return token

    def _tokens(self, refresh: str | None) -> Answer:
        access = f"access-{next(self._numbers)}-{'a' * 1500}"
        self._ends[access] = time.monotonic() + self.seconds
        self.given.append(access)
        self.given_at.append(time.monotonic())
        more = {} if refresh is None else {"refresh_token": refresh}
        return _json(200, access_token=access, token_type="Bearer", expires_in=self.seconds, **more)


def _form(request: Request) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(request.body.decode(), keep_blank_values=True).items()}


def _json(status: int, **fields: object) -> Answer:
    return Answer(status, json.dumps(fields).encode(), {"content-type": "application/json"})
