"""Goal: mail to servers that take OAuth tokens alone, with one renewal for each token, whoever asks, and no token lost.
Method: SMTP and IMAP servers and a token service over TLS on loopback; each Effects stands for a process.
"""

from __future__ import annotations

import base64
import json
import logging
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import sqlalchemy as sa
import trustme
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256

from effects import ConfigurationError, Effects
from effects.kit.crashpoints import CrashPoint, install
from effects.operate.tables.rotate import rotate
from effects.web import Person, dashboard
from effects.web.application import build_routes
from effects.web.pages import installed_pages
from effects.worker.worker import Worker
from effects_email import send_email
from effects_email.errors import LoginFailed, MailboxUnavailable
from effects_email.oauth import service
from effects_email.oauth.logins import (
    await_device_login,
    begin_device_login,
    check_logins,
    client_of,
    redeem,
    save_login,
    token_login_of,
)
from effects_email.oauth.registration import OAuthClient, Tokens, TokenUnavailable
from effects_email.returned.mailboxes import ImapMailbox
from effects_email.state import state_of
from tests.conftest import AppFactory
from tests.email.returned.imap import ImapPeer
from tests.email.wire.conftest import Released, SigningKey, outgoing_message, server_context
from tests.email.wire.oauth_relay import KEY, LIFETIME, NEXT_KEY, USER, Relay, answer, relay, said, send, stored
from tests.house.source import ROOT
from tests.peers.http import Answer
from tests.support.commands import ACTING, COMMANDS, READING, command, error_line
from tests.web.browsing import Visitor

__all__ = ["relay"]


# -- renewal -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["XOAUTH2", "OAUTHBEARER"])
def test_a_message_goes_by_a_token_that_all_processes_share(mechanism: str, relay: Relay) -> None:
    relay.peer.mechanisms = (mechanism,)
    relay.logged_in(relay.process())
    assert [said(relay.process()) for _ in range(3)] == [("accepted", "smtp_250_2.0.0")] * 3
    assert relay.renewals() == 1
    assert {command.split()[1] for command in relay.peer.commands_of("AUTH")} == {mechanism}
    assert max(len(line) for line in relay.peer.commands_of("AUTH")) <= 510  # RFC 4954: the token goes by itself


def test_a_token_is_renewed_at_four_fifths_of_its_life_and_once(relay: Relay) -> None:
    first, second = relay.logged_in(relay.process()), relay.process()
    first.store.shift_clock(0.79 * LIFETIME)
    second.store.shift_clock(0.81 * LIFETIME)
    assert said(first)[0] == "accepted"
    assert relay.renewals() == 1
    assert said(second)[0] == "accepted"
    assert relay.renewals() == 2
    third = relay.process()
    third.store.shift_clock(0.82 * LIFETIME)
    assert said(third)[0] == "accepted"
    assert relay.renewals() == 2


def test_many_threads_and_processes_renew_once(relay: Relay) -> None:
    processes = [relay.logged_in(relay.process()), relay.process(), relay.process()]
    for app in processes:
        app.store.shift_clock(2 * LIFETIME)
    kinds: list[str] = []
    threads = [threading.Thread(target=lambda app=app: kinds.append(said(app)[0])) for app in processes * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert kinds == ["accepted"] * 12
    assert relay.renewals() == 2


def test_a_refused_token_is_renewed_once_and_not_once_a_message(relay: Relay) -> None:
    app = relay.logged_in(relay.process())
    relay.tokens.revoked.add(relay.tokens.given[-1])
    assert said(app)[0] == "accepted"
    assert relay.renewals() == 2
    relay.tokens.revoked.add(relay.tokens.given[-1])
    assert said(app)[0] == "accepted"  # this one was accepted before, so it has a successor of its own
    assert relay.renewals() == 3


def test_an_account_that_takes_no_token_is_no_reason_to_renew_for_each_message(relay: Relay) -> None:
    processes = [relay.logged_in(relay.process()), relay.process()]
    relay.peer.accepts = lambda token: False
    assert [said(app) for app in processes * 3] == [("config", "smtp_535_5.7.8")] * 6
    assert relay.renewals() == 2
    relay.peer.accepts = relay.tokens.accepts
    assert said(processes[0])[0] == "accepted"


# -- what the token service says ------------------------------------------------------------------------------


# One of each kind; `test_oauth_answers` has all the others.
ANSWERS = [
    (answer(400, error="invalid_grant"), "config", "oauth_invalid_grant"),
    (answer(401, error="invalid_client"), "config", "oauth_invalid_client"),
    (answer(503, error="temporarily_unavailable"), "transport_down", "oauth_http_503"),
]


@pytest.mark.parametrize(("fault", "kind", "code"), ANSWERS, ids=[code for _, _, code in ANSWERS])
def test_each_answer_of_the_token_service_has_its_verdict(fault: Answer, kind: str, code: str, relay: Relay) -> None:
    app, second = relay.logged_in(relay.process()), relay.process()
    for process in (app, second):
        process.store.shift_clock(2 * LIFETIME)
    relay.tokens.faults = [fault]
    verdict = send(app).verdict
    assert (verdict.kind, verdict.code) == (kind, code)
    assert ("run `effects email login default`" in verdict.reason) is (code == "oauth_invalid_grant")
    requests = len(relay.tokens.requests)
    assert said(second) == (kind, code)  # another process does not ask again at once
    assert len(relay.tokens.requests) == requests
    for process in (app, second):
        process.store.shift_clock(61)
    assert said(second)[0] == "accepted"  # nothing was lost by it


def test_a_service_that_is_down_changes_nothing_while_the_token_is_good(relay: Relay) -> None:
    app = relay.logged_in(relay.process())
    app.store.shift_clock(0.9 * LIFETIME)
    relay.tokens.faults = [answer(500)]
    assert said(app)[0] == "accepted"
    assert stored(app).failure == "oauth_http_500"
    assert command(app, "email", "login", "nope").exit_code == 2


@pytest.mark.parametrize(("options", "code"), [("&token_network=public", "oauth_address_refused"),
                                               ("&token_ca_file=", "oauth_certificate_unverified")])  # fmt: skip
def test_a_token_service_must_be_public_and_known(options: str, code: str, relay: Relay, tmp_path: Path) -> None:
    relay.logged_in(relay.process())
    if options.endswith("="):
        trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
        options += str(tmp_path / "other.pem")
    name, value = options[1:].split("=")
    url = relay.url(relay.client_options())
    before = "private" if name == "token_network" else str(relay.ca_file)
    app = relay.app_factory(job_types=[], keys=KEY, email_from="Shop <a@shop.example>",
                            smtp_url=url.replace(f"&{name}={before}", f"&{name}={value}"))  # fmt: skip
    app.store.shift_clock(2 * LIFETIME)
    assert said(app) == ("config", code)


# -- crashes --------------------------------------------------------------------------------------------------


def crash_at(name: str) -> Callable[[str], None]:
    def hook(reached: str) -> None:
        if reached == name:
            raise CrashPoint(name)

    return hook


@pytest.mark.parametrize("rotates", [True, False])
@pytest.mark.parametrize("where", ["email.token.leased", "email.token.answered", "email.token.committed"])
def test_a_crash_in_a_renewal_loses_no_refresh_token(where: str, *, rotates: bool, relay: Relay) -> None:
    """Where the service drops the old refresh token with its response, the crash between that and our commit is the one
    that no client survives: it is said, and a login mends it.
    """
    relay.tokens.rotates = rotates
    app, second = relay.logged_in(relay.process()), relay.process()
    app.store.shift_clock(2 * LIFETIME)
    install(crash_at(where))
    try:
        with pytest.raises(CrashPoint):
            send(app)
    finally:
        install(None)
    second.store.shift_clock(2 * LIFETIME + 31)  # the lease of the crashed process is over
    if where == "email.token.answered" and rotates:
        assert said(second) == ("config", "oauth_invalid_grant")
        relay.logged_in(second)
    assert said(second)[0] == "accepted"


def test_the_refresh_token_before_is_kept_until_the_new_one_has_worked(relay: Relay) -> None:
    app = relay.logged_in(relay.process())
    app.store.shift_clock(2 * LIFETIME)
    assert said(app)[0] == "accepted"
    app = relay.process()
    [newest] = relay.tokens.refresh_tokens
    relay.tokens.refresh_tokens = {relay.tokens.forms()[-1]["refresh_token"]}  # the service knows the one before only
    app.store.shift_clock(4 * LIFETIME)
    assert said(app)[0] == "accepted"
    assert [form["refresh_token"] for form in relay.tokens.forms()][-2:] == [
        newest,
        relay.tokens.forms()[1]["refresh_token"],
    ]


def test_a_process_that_lost_its_lease_while_it_waited_still_brings_the_only_good_token(relay: Relay) -> None:
    """Fenced by the version, not by the lease: the other one asked with a token that was good no more."""
    app, second = relay.logged_in(relay.process()), relay.process()
    for process in (app, second):
        process.store.shift_clock(2 * LIFETIME)
    refused: list[tuple[str, str]] = []

    def hook(reached: str) -> None:
        if reached == "email.token.answered" and not refused:
            refused.append(("", ""))
            second.store.shift_clock(31)
            refused.append(said(second))

    install(hook)
    try:
        assert said(app)[0] == "accepted"
    finally:
        install(None)
    assert refused[1] == ("config", "oauth_invalid_grant")
    assert said(second)[0] == "accepted"
    assert stored(app).failure is None


def at_point(name: str, do: Callable[[], object]) -> AbstractContextManager[None]:
    """Within it, do this the first time that a renewal comes to this point."""
    steps = iter([do])

    def hook(reached: str) -> None:
        if reached == name and (step := next(steps, None)) is not None:
            step()

    @contextmanager
    def installed() -> Iterator[None]:
        install(hook)
        try:
            yield
        finally:
            install(None)
        assert next(steps, None) is None, f"{name} was not reached"

    return installed()


def test_a_process_that_stood_still_past_its_lease_asks_no_more(relay: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one has renewed meanwhile, and a service that gets a refresh token twice takes it for stolen."""
    relay.tokens.revokes_reused = True
    app, second = relay.logged_in(relay.process()), relay.process()
    app.store.shift_clock(2 * LIFETIME)
    second.store.shift_clock(2 * LIFETIME + 31)

    def stand_still() -> None:
        assert said(second)[0] == "accepted"
        monkeypatch.setattr(service, "SECONDS", 21.0)  # less is left of the lease than a request may take

    with at_point("email.token.leased", stand_still):
        assert said(app)[0] == "accepted"
    assert (relay.renewals(), stored(app).version) == (2, 2)
    monkeypatch.undo()
    third = relay.process()
    third.store.shift_clock(4 * LIFETIME)
    assert said(third)[0] == "accepted"  # the login is as good as before


def test_a_login_while_a_worker_renews_is_the_one_that_counts(relay: Relay) -> None:
    app = relay.logged_in(relay.process())
    app.store.shift_clock(2 * LIFETIME)
    with at_point("email.token.answered", lambda: relay.logged_in(relay.process())):
        assert said(app)[0] == "accepted"
    [newest] = relay.tokens.refresh_tokens  # the login's
    app.store.shift_clock(2 * LIFETIME)
    assert said(app)[0] == "accepted"
    assert relay.tokens.forms()[-1]["refresh_token"] == newest


def test_logins_at_the_same_time_leave_the_tokens_of_one(relay: Relay) -> None:
    relay.tokens.keeps_last = relay.tokens.rotates = False
    processes = [relay.process() for _ in range(4)]
    threads = [threading.Thread(target=relay.logged_in, args=(app,)) for app in processes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stored(processes[0]).version == 4
    processes[0].store.shift_clock(2 * LIFETIME)
    assert said(processes[0])[0] == "accepted"


def test_a_renewal_that_follows_a_failed_one_is_waited_for(relay: Relay) -> None:
    app, second = relay.logged_in(relay.process()), relay.process()
    for process in (app, second):
        process.store.shift_clock(2 * LIFETIME)
    relay.tokens.faults = [answer(500)]
    assert said(app) == ("transport_down", "oauth_http_500")
    for process in (app, second):
        process.store.shift_clock(6)
    codes: list[str] = []
    waiting = threading.Thread(target=lambda: codes.append(said(second)[1]))
    with at_point("email.token.leased", waiting.start):
        assert said(app)[0] == "accepted"
    waiting.join()
    assert codes == ["smtp_250_2.0.0"]
    assert relay.renewals() == 2


@pytest.mark.parametrize("share", [0.9, 2], ids=["good", "ended"])
def test_a_process_that_stands_still_with_the_row_locked_holds_up_no_one(share: float, relay: Relay) -> None:
    app, second = relay.logged_in(relay.process()), relay.process()
    if not app.store.is_postgresql:
        pytest.skip("its one writer holds up all others, which wait for it as for any")
    second.store.shift_clock(share * LIFETIME)
    client, keeper = client_of(second, "default"), state_of(second).keeper
    with app.store.begin() as connection:
        connection.execute(sa.text("SELECT 1 FROM effects_email_tokens FOR UPDATE"))
        if share < 1:
            assert keeper.bearer("default", client, seconds=0.3).token == relay.tokens.given[-1]
        else:
            with pytest.raises(TokenUnavailable, match="another process has been renewing the token for too long"):
                keeper.bearer("default", client, seconds=0.3)
    assert relay.tokens.accepts(keeper.bearer("default", client, seconds=5).token)


@pytest.mark.parametrize("stage", ["first message", "later message"])
@pytest.mark.parametrize("code", ["530 5.7.0 authentication required", "535 5.7.3 token expired"], ids=["530", "535"])
def test_a_session_whose_token_has_ended_is_replaced(stage: str, code: str, relay: Relay) -> None:
    """Between AUTH and MAIL, or while it was kept open."""
    transport = state_of(relay.logged_in(relay.process())).transports.get("default")
    relay.peer.script["mail"] = [code] if stage == "first message" else ["250 2.1.0 ok", code]
    try:
        for _ in range(2):
            assert transport.send(outgoing_message(), release=Released(), seconds=20).verdict.kind == "accepted"
    finally:
        transport.close()
    assert (relay.peer.connections, len(relay.peer.messages)) == (2, 2)


# -- logging in -----------------------------------------------------------------------------------------------


def test_a_person_logs_in_by_the_device_flow(relay: Relay) -> None:
    app = relay.process()
    assert said(app) == ("config", "oauth_login_needed")
    relay.tokens.pending = ["authorization_pending", "slow_down", "authorization_pending"]
    client = client_of(app, "default")
    code = begin_device_login(client)
    waits: list[float] = []
    tokens = await_device_login(client, code, waits.append)
    save_login(app, "default", client, tokens, actor="cli:ann", reason="set up")
    assert (code.user_code, waits) == ("ABCD-EFGH", [1, 1, 6, 6])
    assert said(relay.process())[0] == "accepted"
    assert "transport" in command(app, "log", "--json").out


@pytest.mark.parametrize("error", ["access_denied", "expired_token", "invalid_client"])
def test_a_login_that_comes_to_nothing_stores_nothing(error: str, relay: Relay) -> None:
    app = relay.process()
    relay.tokens.pending = ["authorization_pending", error]
    client = client_of(app, "default")
    with pytest.raises(LoginFailed, match=error):
        await_device_login(client, begin_device_login(client), lambda seconds: None)
    with pytest.raises(LoginFailed, match="invalid_grant"):
        redeem(client, "no-such-token")
    with pytest.raises(LoginFailed, match="gives no refresh token"):
        save_login(app, "default", client, Tokens("access", None, 60), actor="test", reason=None)
    assert said(app) == ("config", "oauth_login_needed")


def test_another_account_needs_a_login_of_its_own(relay: Relay) -> None:
    relay.logged_in(relay.process())
    assert said(relay.process("&tenant=x"))[0] == "accepted"
    app = relay.app_factory(
        job_types=[], keys=KEY, smtp_url=relay.url(relay.client_options()).replace("client_id=app", "client_id=app2")
    )
    assert said(app) == ("config", "oauth_login_needed")


def test_the_command_reads_a_refresh_token_and_ends_the_pause(relay: Relay) -> None:
    app = relay.process()
    send_email(to="ann@example.org", subject="hello", text="hello", effects=app)
    Worker(app).drain()
    assert "email:default" in command(app, "limits", "list", "--json").out
    assert error_line(command(app, "email", "login", "nope")).startswith("error: the mail transport 'nope' is not set")
    token = relay.tokens.issue_refresh_token()
    answer = command(app, "email", "login", "default", "--refresh-token", "--reason", "set up", stdin=f"{token}\n")
    assert (answer.exit_code, answer.out) == (0, "default logged in\n")
    app.store.shift_clock(3600)
    Worker(app).drain()
    assert [message.recipients for message in relay.peer.messages] == [("ann@example.org",)]


def logins(app: Effects) -> list[tuple[str, str]]:
    """What the doctor says of them."""
    findings = command(app, "doctor", "--json").json
    return [(finding["level"], finding["text"]) for finding in findings if finding["check"] == "mail logins"]


def test_the_doctor_says_how_each_transport_logs_in_and_until_when(relay: Relay) -> None:
    app = relay.process()
    assert logins(app) == [("error", "default has no login by OAuth")]
    relay.logged_in(app)
    [(level, text)] = logins(app)
    assert (level, text.partition(";")[0]) == ("ok", f"default logs in by OAuth as {USER}")
    assert re.search(r"its token ends at \d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ$", text)
    app.store.shift_clock(2 * LIFETIME)
    relay.tokens.faults = [answer(400, error="invalid_grant")]
    send(app)
    [(level, text)] = logins(app)
    assert (level, "[oauth_invalid_grant]" in text, "effects email login default" in text) == ("error", True, True)


@pytest.mark.parametrize(("url", "level", "text"), [
    ("smtp://localhost:25", "ok", "default needs no login"),
    ("smtps://u:p@relay.example", "ok", "default logs in by a password"),
    ("smtps://u:p@smtp.gmail.com", "warning", "default logs in by a password at smtp.gmail.com: Google takes app"),
    ("smtps+oauth+file://u@h?path=/t", "ok", "default logs in by a token that another program renews"),
    ("smtps+oauth://u:s@h?provider=microsoft&client_id=a&grant=client", "ok",
     "default logs in by OAuth and has no token yet"),
])  # fmt: skip
def test_the_doctor_names_other_logins(url: str, level: str, text: str, app_factory: AppFactory) -> None:
    [(said_level, said_text)] = logins(app_factory(keys=KEY, smtp_url=url))
    assert (said_level, said_text[: len(text)]) == (level, text)


# -- other grants ---------------------------------------------------------------------------------------------


def test_client_credentials_need_no_person(relay: Relay) -> None:
    relay.tokens.client_secret = "s3cret"
    assert said(relay.process("&grant=client", secret=":s3cret"))[0] == "accepted"
    assert said(relay.process("&grant=client", secret=":s3cret"))[0] == "accepted"
    [form] = relay.tokens.forms()
    assert form == {"grant_type": "client_credentials", "client_id": "app", "client_secret": "s3cret", "scope": "mail"}


def claims_of(assertion: str, public: rsa.RSAPublicKey) -> tuple[dict[str, Any], dict[str, Any]]:
    """Header and claims of a token whose signature holds."""
    head, body, signature = assertion.split(".")
    decoded = [base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)) for part in (head, body, signature)]
    header = json.loads(decoded[0])
    salted = padding.PSS(mgf=padding.MGF1(SHA256()), salt_length=32)
    how = {"PS256": salted, "RS256": padding.PKCS1v15()}[header["alg"]]
    public.verify(decoded[2], f"{head}.{body}".encode(), how, SHA256())
    return header, json.loads(decoded[1])


def test_a_client_signs_an_assertion_instead_of_sending_a_secret(relay: Relay, signing_key: SigningKey) -> None:
    options = f"&grant=client&assertion_key={signing_key.key}&assertion_certificate={signing_key.certificate}"
    assert said(relay.process(options))[0] == "accepted"
    [form] = relay.tokens.forms()
    header, claims = claims_of(form["client_assertion"], signing_key.public)
    assert (header["alg"], set(header)) == ("PS256", {"alg", "typ", "x5t#S256"})
    assert (claims["iss"], claims["sub"], claims["aud"]) == ("app", "app", relay.tokens.url)
    assert claims["exp"] - claims["iat"] == 600


def test_a_service_account_acts_for_a_user(relay: Relay, signing_key: SigningKey, tmp_path: Path) -> None:
    key = signing_key.key.read_text()
    account = {"client_email": "robot@project.example", "private_key": key, "private_key_id": "7"}
    (tmp_path / "account.json").write_text(json.dumps(account))
    options = f"&grant=service_account&account_file={tmp_path / 'account.json'}"
    assert said(relay.process(options))[0] == "accepted"
    [form] = relay.tokens.forms()
    header, claims = claims_of(form["assertion"], signing_key.public)
    assert (header["alg"], header["kid"]) == ("RS256", "7")
    assert (claims["iss"], claims["sub"], claims["scope"]) == ("robot@project.example", USER, "mail")


def test_a_file_or_a_command_gives_tokens_that_others_renew(relay: Relay, tmp_path: Path) -> None:
    file = tmp_path / "token"
    relay.tokens.client_secret = None
    file.write_text(_access_token(relay) + "\n")
    for scheme, option in (("+file", f"&path={file}"), ("+command", f"&run={quote(f'cat {file}')}")):
        url = relay.url(option, scheme=f"smtp+starttls+oauth{scheme}")
        app = relay.app_factory(job_types=[], keys="", smtp_url=url)
        assert said(app)[0] == "accepted"
        relay.tokens.revoked.add(file.read_text().strip())
        assert said(app) == ("config", "smtp_535_5.7.8")
        file.write_text(_access_token(relay))  # as its owner does; read for the next session
        assert said(app)[0] == "accepted"
    file.unlink()
    assert said(app) == ("transport_down", "oauth_command")


def _access_token(relay: Relay) -> str:
    client = client_of(relay.process(), "default")
    return redeem(client, relay.tokens.issue_refresh_token()).access


# -- at rest, and on screens ----------------------------------------------------------------------------------


def test_tokens_are_sealed_rotated_and_shown_nowhere(relay: Relay, caplog: pytest.LogCaptureFixture) -> None:
    app = relay.logged_in(relay.process())
    app.store.shift_clock(2 * LIFETIME)
    send(app)
    secrets = [
        *relay.tokens.given,
        *relay.tokens.refresh_tokens,
        *(form["refresh_token"] for form in relay.tokens.forms()),
    ]
    row = str(stored(app)).encode()
    rotated = relay.process(keys=f"{NEXT_KEY},{KEY}")
    rotate(rotated.store, rotated.keys, actor="test")
    newer = relay.process(keys=NEXT_KEY)
    newer.store.shift_clock(2 * LIFETIME)
    assert said(newer)[0] == "accepted"
    transport = state_of(app).transports.get("default")
    keeper = state_of(app).keeper
    bearer = keeper.bearer("default", client_of(app, "default"), seconds=5)
    seen = f"{caplog.text} {transport!r} {keeper!r} {bearer!r} {client_of(app, 'default')!r} {row!r} {stored(newer)}"
    assert [secret for secret in secrets if secret in seen] == []


def pages_of(app: Effects) -> Iterator[str]:
    """Every page of the dashboard, and those that they lead to, as one sees them who may see everything."""
    board = dashboard(guard=lambda request: Person("ann", role="admin", personal=True), effects=app)
    visitor, seen = Visitor(board), set[str]()
    waiting = {route.pattern for route in build_routes(None, installed_pages()) if "GET" in route.methods}
    waiting = {path for path in waiting if "{" not in path}
    while waiting:
        seen.add(path := waiting.pop())
        response = visitor.get(path)
        shown = response.text
        assert response.status_code < 500, shown
        links = {unescape(link).partition("#")[0] for link in re.findall(r'href="(/[^"]*)"', shown)}
        waiting |= {link for link in links if "/-/" not in link and "?" not in link} - seen
        yield shown
    board.close()
    assert len(seen) > 20, seen


def test_no_token_is_shown_anywhere(relay: Relay, caplog: pytest.LogCaptureFixture) -> None:
    """In what commands print, on a page, in the log at DEBUG with its tracebacks, in rows, and in the addresses that
    the token service is asked at: of a mail server that repeats what it was told, of a token service that does, of a
    renewal that fails by a defect, and of logins by the device flow.
    """
    for logger in ("", "asyncio", "httpcore", "httpx", "sqlalchemy.engine"):
        caplog.set_level(logging.DEBUG, logger)
    app = relay.process()
    tokens, pasted, typed = relay.tokens, "pasted-" + "p" * 40, []
    tokens.faults = [answer(400, error=tokens.device_code, error_description=tokens.device_code)]
    typed.append(command(app, "email", "login", "default"))
    for end in (tokens.device_code, "access_denied", "authorization_declined", "expired_token", ""):
        tokens.pending = ["authorization_pending", end] if end else []
        typed.append(command(app, "email", "login", "default", "--json"))
    tokens.faults = [answer(400, error="invalid_grant", error_description=pasted)]
    typed.append(command(app, "email", "login", "default", "--refresh-token", stdin=pasted))
    assert [printed.exit_code for printed in typed] == [2, 2, 2, 2, 2, 0, 2], typed
    relay.peer.accepts = lambda token: False
    relay.peer.refusal = "535 5.7.8 no: {token} {response}"
    send_email(to="ann@example.org", subject="hello", text="hello", key="m1", effects=app)
    Worker(app).drain()
    assert stored(app).for_refused
    for fault in ("a defect", "the service repeats it"):
        app.store.shift_clock(2 * LIFETIME)
        with at_point("email.token.answered", lambda fault=fault: 1 / (fault != "a defect")):  # type: ignore[misc]
            Worker(app).drain()
        [*_, refresh] = (form["refresh_token"] for form in tokens.forms() if "refresh_token" in form)
        tokens.faults = [answer(401, error="invalid_client", error_description=refresh, error_uri=f"/{refresh}")]
    assert stored(app).failure == "oauth_invalid_client"
    shown = [f"{caplog.text} {[vars(record) for record in caplog.records]}", *pages_of(app)]
    shown += [f"{printed.out} {printed.err}" for printed in typed]
    shown += [f"{request.path} {request.headers}" for request in tokens.requests]
    for words in (*sorted({*READING} - ACTING), "metrics", "why m1", "jobs show 1", "email show m1"):
        for options in ([], ["--json"]) if words in COMMANDS else ([],):
            printed = command(app, *words.split(), *options)
            assert printed.exit_code in (0, 1, 2), printed
            shown += [printed.out, printed.err]
    with app.engine.connect() as connection:
        for name, table in app.store.tables.items():
            shown.append(f"{name} {connection.execute(sa.select(table)).all()}")
    for words in ("smtp_535_5.7.8", "ZeroDivisionError", "oauth_invalid_client", "oauth_access_denied", "ABCD-EFGH"):
        assert words in "".join(shown), words
    secrets = [*tokens.given, *tokens.refresh_tokens, tokens.device_code]
    secrets += [form["refresh_token"] for form in tokens.forms() if "refresh_token" in form]
    halves = [secret[:40] for secret in secrets]
    halves += [base64.b64encode(secret.encode())[20:50].decode() for secret in secrets]
    assert [text for text in shown if any(half in text for half in halves)] == []


def test_without_a_key_no_token_is_stored(relay: Relay) -> None:
    app = relay.process("&grant=client", keys="", secret=":x")
    assert said(app) == ("config", "oauth_unusable")
    assert "EFFECTS_KEYS" in send(app).verdict.reason
    assert relay.tokens.requests == []  # what it gave would be lost
    with pytest.raises(ConfigurationError, match="run `effects keys generate`"):
        check_logins(app)
    missing = relay.process("&grant=client&assertion_key=/nowhere&assertion_certificate=/nowhere")
    with pytest.raises(ConfigurationError, match="/nowhere cannot be read: No such file"):
        check_logins(missing)
    assert said(missing) == ("config", "oauth_unusable")


# -- the URL ----------------------------------------------------------------------------------------------------

MICROSOFT = "provider=microsoft&client_id=app"


@pytest.mark.parametrize(("url", "words"), [
    (f"smtp+starttls+oauth://h?{MICROSOFT}", "names no user"),
    ("smtp+starttls+oauth://u@h?client_id=app", "names no token service"),
    ("smtp+starttls+oauth://u@h?provider=microsoft", "names no client_id"),
    ("smtp+starttls+oauth://u@h?client_id=a&token_url=https://t/", "names no scope"),
    ("smtp+starttls+oauth://u@h?client_id=a&scope=x&token_url=http://t/", "token_url that is not an https URL"),
    (f"smtp+starttls+oauth://u@h?{MICROSOFT}&grant=client", "without a secret"),
    (f"smtp+starttls+oauth://u@h?{MICROSOFT}&assertion_key=k", "give both"),
    (f"smtp+starttls+oauth://u@h?{MICROSOFT}&grant=password", "not one of refresh"),
    ("smtp+starttls+oauth://u@h?provider=google&grant=service_account", "without account_file"),
    (f"smtp+oauth://u@h?{MICROSOFT}", "in clear to another machine"),
    (f"smtp+starttls+oauth://u@h?{MICROSOFT}&colour=red", "unknown option"),
    ("smtp+starttls+oauth+file://u@h", "lacks the option path"),
    ("smtp+starttls+oauth+command://u@h", "lacks the option run"),
    ("smtp+starttls+oauth+magic://u@h", "has the scheme"),
    ("smtp+starttls://u:p@h?client_id=app", "unknown option"),
])  # fmt: skip
def test_a_url_that_cannot_work_says_what_is_missing(url: str, words: str, app_factory: AppFactory) -> None:
    app = app_factory(job_types=[], keys=KEY, smtp_url=url)
    with pytest.raises(ConfigurationError, match=words):
        state_of(app).transports.check()


@pytest.mark.parametrize(("options", "token_url", "scope"), [
    (MICROSOFT, "https://login.microsoftonline.com/organizations/oauth2/v2.0/token", "SMTP.Send"),
    (f"{MICROSOFT}&tenant=t1", "https://login.microsoftonline.com/t1/oauth2/v2.0/token", "IMAP.AccessAsUser.All"),
    ("provider=google&client_id=app", "https://oauth2.googleapis.com/token", "https://mail.google.com/"),
])  # fmt: skip
def test_a_providers_endpoints_are_known(options: str, token_url: str, scope: str, app_factory: AppFactory) -> None:
    app = app_factory(job_types=[], keys=KEY, smtp_url=f"smtp+starttls+oauth://u@h?{options}")
    client = client_of(app, "default")
    assert (client.token_url, scope in client.scope) == (token_url, True)
    assert isinstance(client, OAuthClient)


def test_every_url_of_the_page_can_be_opened(app_factory: AppFactory) -> None:
    page = (ROOT / "docs" / "email-oauth.md").read_text(encoding="utf-8")
    urls = re.findall(r"EFFECTS_SMTP_URL=(\S+)", page)
    assert len(urls) == 8
    for url in urls:
        assert token_login_of(app_factory(job_types=[], keys=KEY, smtp_url=url), "default")


# -- IMAP -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scheme", "mechanism"), [("imaps", "XOAUTH2"), ("imap+starttls", "OAUTHBEARER")])
def test_bounces_are_read_by_the_same_token(scheme: str, mechanism: str, relay: Relay, authority: trustme.CA) -> None:
    app = relay.logged_in(relay.process())
    context = server_context(authority, "127.0.0.1")
    with ImapPeer(
        [b"Subject: x\r\n\r\nhello"], scheme=scheme, context=context, accepts=relay.tokens.accepts, mechanism=mechanism
    ) as server:
        url = f"{scheme}+oauth://{quote(USER)}@127.0.0.1:{server.port}/INBOX"
        with ImapMailbox(url, ca_file=str(relay.ca_file), login=lambda name: token_login_of(app, name)) as mailbox:
            assert [data for _, data in mailbox.unread()] == [b"Subject: x\r\n\r\nhello"]
        assert relay.renewals() == 1
        relay.tokens.revoked.add(relay.tokens.given[-1])
        with ImapMailbox(url, ca_file=str(relay.ca_file), login=lambda name: token_login_of(app, name)) as mailbox:
            assert len(list(mailbox.unread())) == 1
        assert relay.renewals() == 2
        with pytest.raises(ConfigurationError, match="is not set"):
            ImapMailbox(f"{url}?transport=other", login=lambda name: token_login_of(app, name))
    with ImapPeer([], scheme=scheme, context=context) as server:
        url = f"{scheme}+oauth://{quote(USER)}@127.0.0.1:{server.port}/INBOX"
        mailbox = ImapMailbox(url, ca_file=str(relay.ca_file), login=lambda name: token_login_of(app, name))
        with pytest.raises(MailboxUnavailable, match="takes no access tokens: it offers none"), mailbox:
            pass
