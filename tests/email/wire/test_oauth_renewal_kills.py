"""Goal: a process that dies anywhere in a renewal loses no refresh token that a client can keep.
Method: SIGKILL, or SIGSTOP past the lease, at each statement that a renewal executes, in Python and in SQL, and at each
await. The places are those that a renewal without a kill passes; a sample of them, all in `make soak`.
"""

from __future__ import annotations

import itertools
import signal
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import sqlalchemy as sa

from effects import Effects
from effects_email.oauth.keeper import TokenKeeper
from effects_email.oauth.logins import client_of, redeem, save_login
from effects_email.oauth.registration import TokenFailure, TokenUnavailable
from tests.conftest import AppFactory
from tests.email.wire.oauth_renewing import LOCKED, renew
from tests.peers.tokens import TokenService
from tests.support.processes import Fleet, fleet
from tests.support.sampling import sample

KEY = "k1=" + "A" * 43 + "="
LIFETIME, PAST_THE_LEASE = 3600, 31
KILLS = 4


class Renewals:
    """Renewals of one row by one process after the other, each after the end of the token before."""

    def __init__(self, url: str, tokens: TokenService, app: Effects, processes: Fleet, folder: Path) -> None:
        self.tokens, self._app, self._url, self._processes = tokens, app, url, processes
        self._steps_file, self._elapsed = folder / "steps", 0.0
        self._client = client_of(app, "default")
        self.log_in()

    def log_in(self) -> None:
        answer = redeem(self._client, self.tokens.issue_refresh_token())
        save_login(self._app, "default", self._client, answer, actor="test", reason=None)

    def renew(self, at: int, number: signal.Signals = signal.SIGKILL) -> Any:
        """The process that renews, when it has the signal or is done."""
        self._pass(2 * LIFETIME)
        self._steps_file.unlink(missing_ok=True)
        process = self._processes.start(renew, self._url, KEY, self._elapsed, str(self._steps_file), at, number)
        if number == signal.SIGSTOP:
            process.wait_frozen()
        else:
            process.wait()
        return process

    def steps(self) -> list[str]:
        """Where the last process was, or all that it passed."""
        return self._steps_file.read_text().splitlines()

    def bearer(self) -> str | TokenFailure:
        """The token that another process gets once the lease is over, or why it gets none."""
        self._pass(PAST_THE_LEASE)
        try:
            return TokenKeeper(self._app).bearer("default", self._client, seconds=1).token
        except TokenUnavailable as error:
            return error.failure

    def version(self) -> int:
        with self._app.engine.connect() as connection:
            return int(connection.execute(sa.text("SELECT version FROM effects_email_tokens")).scalar_one())

    def _pass(self, seconds: float) -> None:
        self._app.store.shift_clock(seconds)
        self._elapsed += seconds


@pytest.fixture
def renewals(
    keeps_last: bool, app_factory: AppFactory, database_url: str, server_tls: ssl.SSLContext,
    ca_file: Path, tmp_path: Path,
) -> Iterator[Renewals]:  # fmt: skip
    with (
        TokenService(server_tls, seconds=LIFETIME * 24, keeps_last=keeps_last) as tokens,
        fleet(database_url, tmp_path) as processes,
    ):
        tokens.seconds = LIFETIME
        url = (
            f"smtp+starttls+oauth://shop@localhost:25?token_ca_file={ca_file}&scope=mail&token_network=private"
            f"&client_id=app&token_url={quote(tokens.url)}"
        )
        yield Renewals(url, tokens, app_factory(job_types=[], keys=KEY, smtp_url=url), processes, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("number", "keeps_last"), sample(itertools.product([signal.SIGKILL, signal.SIGSTOP], [True, False]), 1)
)
def test_a_renewal_that_is_cut_short_anywhere_loses_nothing(
    number: signal.Signals, keeps_last: bool, renewals: Renewals, database_url: str
) -> None:
    """Where the service forgets the old token with its answer, the time from there to our commit is the exception, and
    the failure names the login.
    """
    assert renewals.renew(0).wait() == 0
    places = renewals.steps()
    assert len(places) > 150
    assert sum(place.startswith("after_cursor_execute") for place in places) >= 2
    skipped = LOCKED if number == signal.SIGSTOP and database_url.startswith("sqlite") else "\n"  # it has one writer
    for at in sample([at for at, place in enumerate(places, 1) if skipped not in place], KILLS):
        version, answers = renewals.version(), len(renewals.tokens.given)
        process = renewals.renew(at, number)
        where = f"step {at}: {renewals.steps()}"
        if skipped in renewals.steps()[0]:  # it passed some steps more or fewer than the first one
            process.thaw()
            process.wait()
            continue
        bearer = renewals.bearer()
        answered_only = len(renewals.tokens.given) > answers and renewals.version() == version
        if number == signal.SIGSTOP:
            process.thaw()
            process.wait()
        if isinstance(bearer, TokenFailure) and bearer.kind != "unavailable":
            assert answered_only, (where, bearer)
            assert not renewals.tokens.keeps_last, (where, bearer)
            assert "run `effects email login default`" in bearer.reason, where
            renewals.log_in()
        elif isinstance(bearer, TokenFailure):  # frozen within a transaction, on which no one waits for ever
            assert number == signal.SIGSTOP, (where, bearer)
        else:
            assert renewals.tokens.accepts(bearer), where
        bearer = renewals.bearer()
        assert isinstance(bearer, str), (where, bearer)
        assert renewals.tokens.accepts(bearer), where
