"""Goal: what is wrong with a token's source harms no more than it must: no other process, no thread, no later renewal.
Method: real files and commands; the servers of `test_oauth`; a database whose driver fails for a while.
"""

from __future__ import annotations

import os
import sqlite3
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import sqlalchemy as sa
import trustme

from effects import ConfigurationError
from effects.kit.crashpoints import install
from effects_email.errors import MailboxUnavailable
from effects_email.oauth.logins import client_of, token_login_of
from effects_email.oauth.registration import TokenCommand, TokenFile, TokenUnavailable, external_token
from effects_email.returned.mailboxes import ImapMailbox
from effects_email.state import state_of
from tests.conftest import AppFactory
from tests.email.returned.imap import ImapPeer
from tests.email.wire.conftest import server_context
from tests.email.wire.oauth_relay import KEY, LIFETIME, NEXT_KEY, USER, Relay, answer, relay, said, send, stored
from tests.peers.http import Answer
from tests.support.commands import command, error_line
from tests.support.waiting import wait_until

__all__ = ["relay"]


def test_a_token_that_ends_at_once_is_asked_for_once(relay: Relay) -> None:
    app = relay.logged_in(relay.process())
    app.store.shift_clock(2 * LIFETIME)
    before = len(relay.tokens.requests)
    relay.tokens.faults = [answer(200, access_token="token-x", expires_in=1e-9) for _ in range(5)]
    keeper, client = state_of(app).keeper, client_of(app, "default")
    assert keeper.bearer("default", client, seconds=5).token == "token-x"
    assert len(relay.tokens.requests) == before + 1


def test_a_refresh_token_goes_back_as_it_came(relay: Relay) -> None:
    app = relay.logged_in(relay.process())
    keeper, client = state_of(app).keeper, client_of(app, "default")
    refresh_tokens = ["r" * 10_240, "a token", "été", "\t"]  # 10 KB, a space, letters, a tab
    relay.tokens.faults = [
        answer(200, access_token="token-x", refresh_token=refresh, expires_in=1e-9) for refresh in refresh_tokens
    ]
    app.store.shift_clock(2 * LIFETIME)
    for _ in refresh_tokens:
        keeper.bearer("default", client, seconds=5)
    relay.tokens.refresh_tokens.add(refresh_tokens[-1])
    assert said(app)[0] == "accepted"
    assert [form["refresh_token"] for form in relay.tokens.forms()[2:]] == refresh_tokens
    assert relay.tokens.requests[-1].headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("patience", [5, 0], ids=["within the wait", "with the next call"])
def test_a_token_that_the_database_cannot_take_is_committed_when_it_can(patience: int, relay: Relay) -> None:
    """The service has dropped the token before it."""
    app = relay.logged_in(relay.process())
    app.store.shift_clock(2 * LIFETIME)
    keeper, client = state_of(app).keeper, client_of(app, "default")
    failures = iter(range(3 if patience else 1))

    def down(*_: Any) -> None:
        if next(failures, None) is not None:
            raise sa.exc.OperationalError("UPDATE", {}, sqlite3.OperationalError("database is locked"))

    def hook(name: str) -> None:
        if name == "email.token.answered":
            sa.event.listen(app.engine, "before_cursor_execute", down)

    install(hook)
    try:
        if not patience:
            with pytest.raises(TokenUnavailable) as caught:
                keeper.bearer("default", client, seconds=0)
            assert (caught.value.failure.kind, caught.value.failure.code) == ("unavailable", "oauth_database")
        assert relay.tokens.accepts(keeper.bearer("default", client, seconds=patience).token)
    finally:
        install(None)
    assert (relay.renewals(), stored(app).version) == (2, 2)
    again = relay.process()
    again.store.shift_clock(4 * LIFETIME)
    assert said(again)[0] == "accepted"


def test_a_process_that_cannot_renew_leaves_the_row_to_those_that_can(relay: Relay) -> None:
    app = relay.logged_in(relay.process())
    url = relay.url(relay.client_options()).replace("client_id=app", "client_id=app2")
    others = [
        relay.process(keys=NEXT_KEY),
        relay.process(keys=""),
        relay.app_factory(job_types=[], keys=KEY, smtp_url=url),
    ]
    others.append(relay.process("&assertion_key=/nowhere&assertion_certificate=/nowhere"))
    for process in (app, *others):
        process.store.shift_clock(2 * LIFETIME)
    unusable = ("config", "oauth_unusable")
    assert [said(process) for process in others] == [unusable, unusable, ("config", "oauth_login_needed"), unusable]
    assert (stored(app).failure, relay.renewals()) == (None, 1)
    assert said(app)[0] == "accepted"


def test_a_temporary_refusal_is_no_word_on_the_token(relay: Relay) -> None:
    app = relay.logged_in(relay.process())
    relay.peer.accepts = lambda token: False
    relay.peer.refusal = "454 4.7.0 later"
    assert said(app)[1] == "smtp_454_4.7.0"
    assert relay.renewals() == 1


def test_the_service_is_asked_again_in_a_quarter_of_an_hour_whatever_it_says(relay: Relay) -> None:
    app = relay.logged_in(relay.process())
    app.store.shift_clock(2 * LIFETIME)
    relay.tokens.faults = [Answer(429, b"", {"retry-after": "99999"})]
    assert said(app) == ("transport_down", "oauth_http_429")
    app.store.shift_clock(899 - 2)
    assert said(app) == ("transport_down", "oauth_http_429")
    app.store.shift_clock(5)
    assert said(app)[0] == "accepted"


def test_no_login_is_advised_where_no_person_logs_in(relay: Relay) -> None:
    relay.tokens.faults = [answer(400, error="invalid_grant")]
    verdict = send(relay.process("&grant=client", secret=":s3cret")).verdict
    assert (verdict.kind, verdict.code) == ("config", "oauth_invalid_grant")
    assert "effects email login" not in verdict.reason
    assert "this machine's clock" in verdict.reason


def test_a_login_that_could_not_be_stored_is_refused_before_anyone_is_asked(relay: Relay) -> None:
    for options in ([], ["--refresh-token"]):
        refused = command(relay.process(keys=""), "email", "login", "default", *options, stdin="token")
        assert "EFFECTS_KEYS has no key" in error_line(refused)
    for text in ("", "a\nb", "x" * 20_000):
        assert command(relay.process(), "email", "login", "default", "--refresh-token", stdin=text).exit_code == 2
    assert relay.tokens.requests == []


# -- tokens of other programs ---------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with what is no file with a token."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b"x" * 100_000)
    (tmp_path / "two").write_text("a\nb\n")
    (tmp_path / "empty").write_text("\n")
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 30)
    return tmp_path


@pytest.mark.parametrize(("name", "words"), [
    ("pipe", "not a regular file"), ("", "Is a directory"), ("large", "longer than"), ("huge", "longer than"),
    ("missing", "No such file"), ("two", "holds no access token"), ("empty", "holds no access token"),
    ("/dev/zero", "not a regular file"),
])  # fmt: skip
def test_a_file_that_holds_no_token_is_refused_without_a_wait(name: str, words: str, files: Path) -> None:
    with pytest.raises(TokenUnavailable, match=words) as caught:
        external_token(TokenFile("u", str(files / name)), 5)
    assert caught.value.failure.kind == "config"


@pytest.mark.parametrize(("arguments", "kind", "words"), [
    (["true"], "config", "holds no access token"),
    (["printf", "a\\nb\\n"], "config", "holds no access token"),
    (["printf", "a\\001b"], "config", "holds no access token"),
    (["yes"], "config", "holds no access token"),
    (["sh", "-c", "echo s3cret >&2; exit 3"], "unavailable", "exits with 3$"),
    (["sh", "-c", "echo s3cret; sleep 60"], "unavailable", "not ended within 0 s$"),
    (["sh", "-c", "exec >&-; sleep 60"], "unavailable", "not ended within 0 s$"),
    (["/nowhere/s3cret"], "config", "cannot be started: No such file or directory$"),
    (["/dev/null"], "config", "cannot be started: Permission denied$"),
])  # fmt: skip
def test_a_command_that_prints_no_token_ends_in_time(arguments: list[str], kind: str, words: str) -> None:
    with pytest.raises(TokenUnavailable, match=words) as caught:
        external_token(TokenCommand("u", tuple(arguments)), 0.3)
    assert caught.value.failure.kind == kind
    assert "s3cret" not in caught.value.failure.reason


def test_what_a_command_began_ends_with_its_time(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    script = f"sleep 60 & echo $! > {file}; wait"
    with pytest.raises(TokenUnavailable):
        external_token(TokenCommand("u", ("sh", "-c", script)), 0.5)
    stat = Path(f"/proc/{int(file.read_text())}/stat")
    wait_until(lambda: not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] == "Z")


def test_a_file_that_was_replaced_while_its_token_was_refused_is_read_again(relay: Relay, tmp_path: Path) -> None:
    file = tmp_path / "token"
    app = relay.logged_in(relay.process())
    good = state_of(app).keeper.bearer("default", client_of(app, "default"), seconds=5).token
    file.write_text("of-yesterday")

    def accepts(token: str) -> bool:
        file.write_text(good)
        return relay.tokens.accepts(token)

    relay.peer.accepts = accepts
    url = relay.url(f"&path={file}", scheme="smtp+starttls+oauth+file")
    assert said(relay.app_factory(job_types=[], smtp_url=url))[0] == "accepted"


BASE = "smtp+starttls+oauth://u@h?client_id=a&scope=x&token_url="


@pytest.mark.parametrize(("url", "words"), [
    ("smtp+starttls+oauth+command://u@h?run=a%20%22b", "a quotation mark that is not closed"),
    ("smtp+starttls+oauth+command://u@h?run=%20", "names no command"),
    ("smtp+starttls+oauth+file://u@h?path=/t%00", "lacks the option path"),
    ("smtp+starttls+oauth+file://u%01auth@h?path=/t", "a control character"),
    (f"{BASE}https://t:99999/", "not an https URL"),
    (f"{BASE}https://t:0/", "not an https URL"),
    (f"{BASE}https://u:p@t/", "without a user"),
    (f"{BASE}https://t/caf%C3%A9", "in ASCII"),
    (f"{BASE}https://t/a%20b", "not an https URL"),
    (f"{BASE}https://[t/", "not an https URL"),
    (f"{BASE}https://t/&token_ca_file=/nowhere", "token_ca_file that cannot be read"),
    (f"{BASE}https://t/&device_url=https://", "device_url that is not"),
])  # fmt: skip
def test_a_source_that_cannot_work_is_refused_with_its_url(url: str, words: str, app_factory: AppFactory) -> None:
    app = app_factory(job_types=[], keys=KEY, smtp_url=url)
    with pytest.raises(ConfigurationError, match=words):
        state_of(app).transports.check()


# -- IMAP -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fault", "words"), [
    ("challenges", "refuses the login"), ("garbage", "broke off the login or answers what is not IMAP"),
    ("cut", "broke off the login"),
])  # fmt: skip
def test_a_mailbox_whose_server_misbehaves_at_the_login(
    fault: str, words: str, relay: Relay, authority: trustme.CA
) -> None:
    app = relay.logged_in(relay.process())
    context: ssl.SSLContext = server_context(authority, "127.0.0.1")
    with ImapPeer([], scheme="imaps", context=context, accepts=relay.tokens.accepts, fault=fault) as server:
        url = f"imaps+oauth://{quote(USER)}@127.0.0.1:{server.port}/INBOX"
        mailbox = ImapMailbox(url, ca_file=str(relay.ca_file), login=lambda name: token_login_of(app, name))
        with pytest.raises(MailboxUnavailable, match=words), mailbox:
            pass
    assert relay.renewals() == (2 if fault == "challenges" else 1)


def test_a_mailbox_of_another_user_and_one_without_passwords(relay: Relay, authority: trustme.CA) -> None:
    app = relay.logged_in(relay.process())
    context = server_context(authority, "127.0.0.1")
    with ImapPeer([], scheme="imaps", context=context, accepts=relay.tokens.accepts, fault="no passwords") as server:
        url = f"imaps+oauth://bounces%40shop.example@127.0.0.1:{server.port}/INBOX"
        with ImapMailbox(url, ca_file=str(relay.ca_file), login=lambda name: token_login_of(app, name)):
            assert "user=bounces@shop.example" in server.commands
        mailbox = ImapMailbox(server.url("INBOX"), ca_file=str(relay.ca_file))
        with pytest.raises(MailboxUnavailable, match="takes no passwords: it offers XOAUTH2"), mailbox:
            pass
    assert not [said for said in server.commands if said.startswith("LOGIN")]
