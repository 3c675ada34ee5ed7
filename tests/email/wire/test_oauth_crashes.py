"""Goal: processes that are killed at random lose no message and no refresh token, renew once for each lifetime, and
show no token: in arguments, environments, or logs at DEBUG.
Method: four workers and a reader of bounces, SMTP and IMAP servers that take tokens alone, tokens that are good for
seconds.
"""

from __future__ import annotations

import os
import random
import signal
import ssl
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path
from urllib.parse import quote

import pytest
import trustme

from effects.keys.encryption import generate_key
from effects_email.errors import LoginFailed
from effects_email.oauth.logins import client_of, redeem, save_login
from tests.conftest import AppFactory
from tests.email.returned.imap import ImapPeer
from tests.email.wire.conftest import server_context
from tests.email.wire.post import PAST_EVERY_WAIT_SECONDS, SENDER, Post, copies, write_templates
from tests.peers.http import Answer
from tests.peers.smtp import SmtpPeer
from tests.peers.tokens import TokenService
from tests.support.processes import APP, effects, fleet
from tests.support.sampling import is_full, sample
from tests.support.waiting import wait_until

MESSAGES, KILLS, WORKERS = (1000, 40, 4) if is_full() else (40, 2, 2)
# For one part of the messages. Beside other tests a token may end on its way to a server, and each refused one may
# cost a pause of a minute.
PATIENCE_SECONDS = 600 if is_full() else 120
LIFETIME = 2.0
LOST = "SELECT 1 AS found FROM effects_email_tokens WHERE failure_kind = 'login_needed'"
# Of the token service: what it says, that it is down, and that it does not answer. Each may cost a pause of a minute.
FAULTS = [
    Answer(400, b'{"error": "invalid_request"}'), Answer(401, b'{"error": "invalid_client"}'), Answer(429), Answer(500),
    Answer(503), Answer(reset=True), Answer(200, b"<html>"), Answer(wait=threading.Event()),
]  # fmt: skip
SLOW_SECONDS = 3.0  # more than a token's lifetime


def seen_by_others(pid: int) -> str:
    """Arguments and environment of a process and of its children."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    files = [Path(f"/proc/{each}/{name}") for each in (pid, *children) for name in ("cmdline", "environ")]
    return "".join(file.read_text(errors="replace") for file in files if file.exists())


@pytest.mark.slow
@pytest.mark.timeout(6 * PATIENCE_SECONDS)
@pytest.mark.parametrize("keeps_last", sample([True, False], 1))
def test_killed_workers_lose_no_message_and_renew_once_a_lifetime(
    *, keeps_last: bool, app_factory: AppFactory, tmp_path: Path, database_url: str, server_tls: ssl.SSLContext,
    ca_file: Path, authority: trustme.CA, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    seed = os.environ.get("EFFECTS_TEST_SEED") or str(random.SystemRandom().randrange(10**9))
    print(f"EFFECTS_TEST_SEED={seed}")
    draw = random.Random(seed)
    with (
        TokenService(server_tls, seconds=LIFETIME, keeps_last=keeps_last) as tokens,
        SmtpPeer(tls=server_tls, accepts=tokens.accepts) as server,
        ImapPeer([], scheme="imaps", context=server_context(authority, "127.0.0.1"), accepts=tokens.accepts) as mailbox,
        fleet(database_url, tmp_path) as processes,
    ):
        url = (
            f"smtp+starttls+oauth://shop@localhost:{server.port}?ca_file={ca_file}&token_ca_file={ca_file}&scope=mail"
            f"&token_network=private&client_id=app&token_url={quote(tokens.url)}&connection_seconds=1"
        )
        keys = f"k1={generate_key()}"
        templates = write_templates(tmp_path)
        app = app_factory(job_types=[], keys=keys, smtp_url=url, email_from=SENDER, templates=str(templates))
        post = Post(app, templates, url, keys)

        logins: list[int] = []  # which access tokens they brought

        def log_in() -> None:
            client = client_of(app, "default")
            answer = redeem(client, tokens.issue_refresh_token())
            logins.append(tokens.given.index(answer.access))
            save_login(app, "default", client, answer, actor="test", reason=None)

        def have_come(count: int) -> bool:
            """As an operator who reads `doctor`: logs in again where the service had dropped the refresh token and the
            new one died with a worker.
            """
            if not keeps_last and post.rows(LOST):
                with suppress(LoginFailed):  # the service is down, say: at the next look
                    log_in()
            return len(server.messages) >= count

        log_in()
        written = {post.write(number, on_unknown="repeat_once") for number in range(MESSAGES)}
        bounces_url = f"imaps+oauth://shop@127.0.0.1:{mailbox.port}/INBOX"
        reading = ("--app", APP, "email", "bounces", "--imap", "-", "--ca-file", str(ca_file))
        read = partial(
            processes.start, effects, *reading, **post.environment, EFFECTS_EMAIL_BOUNCES_URL=bounces_url
        )  # fmt: skip
        start = partial(processes.worker, **post.environment, EFFECTS_LOG_LEVEL="DEBUG")
        workers, reader = [start() for _ in range(WORKERS)], read()
        shown: list[str] = []
        for kill in range(1, KILLS + 1):
            wait_until(partial(have_come, kill * MESSAGES // (KILLS + 1)), seconds=PATIENCE_SECONDS)
            victim = draw.randrange(len(workers))
            workers[victim].kill()
            workers[victim] = start()
            mailbox.messages.append(b"Subject: no bounce\r\n\r\nhello")
            reader.kill()
            reader = read()
            shown += [seen_by_others(worker.pid) for worker in workers if worker.exit_code is None]
            tokens.slow_seconds = SLOW_SECONDS if kill % 8 == 1 else 0.0
            if is_full() and kill % 4 == 0:
                tokens.faults = [FAULTS[kill // 4 % len(FAULTS)]]
        for worker in workers:
            worker.send(signal.SIGTERM)
            worker.wait()
        reader.wait()
        renewals, given_at = len(tokens.given), list(tokens.given_at)
        assert not post.rows(LOST) or not keeps_last
        have_come(0)
        tokens.faults.clear()
        app.store.shift_clock(PAST_EVERY_WAIT_SECONDS)
        post.drain(seconds=PATIENCE_SECONDS)
        last = read()
        assert last.wait() == 0, last.output
        received = [message.data for message in server.messages]
    assert post.faults(received, copies_max=2) == []
    assert set(post.states().values()) == {"done"}
    assert set(copies(received)) == written
    assert mailbox.seen == set(range(1, KILLS + 1))
    logs = [log.read_text() for log in tmp_path.glob("process-*.log")]
    secrets = {*tokens.given, *(form["refresh_token"] for form in tokens.forms())}
    assert any("job.succeeded" in log for log in logs)
    assert [text for text in shown + logs if any(secret[:40] in text for secret in secrets)] == []
    early = [at for at in range(1, renewals) if given_at[at] - given_at[at - 1] < 0.8 * LIFETIME and at not in logins]
    assert early == [], [round(at - given_at[0], 2) for at in given_at]  # one renewal a lifetime, whoever was killed
    counted = copies(received)
    with capsys.disabled():
        print(
            f"\n{MESSAGES} messages, {KILLS} kills, {renewals} tokens in {given_at[-1] - given_at[0]:.0f} s, "
            f"{len(logins)} logins, {counted.total() - len(counted)} second copies, all on record"
        )
