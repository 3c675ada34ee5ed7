"""`effects email bounces`, as a cron job and a mail server run it."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from effects import Effects
from effects_email.returned import reading
from effects_email.returned.parts import MULTIPARTS_MAX
from effects_email.returned.reading import read_report
from tests.cli.conftest import ROOT, Run, _logging, environment, run
from tests.email.returned.conftest import KEYS, Written, address_of
from tests.email.returned.corpus import cases
from tests.email.returned.imap import PASSWORD, ImapPeer
from tests.support.processes import run_typed

__all__ = ["_logging", "run"]
CASE = next(case for case in cases() if case.name == "qmail: no mailbox")


@pytest.fixture
def data(shop: Effects, written: Written, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """The bounce of a message to Ann; the environment is the shop's."""
    monkeypatch.setenv("EFFECTS_KEYS", KEYS)
    receipt = written("ann@example.org", key="order:7")
    return CASE.message(to=address_of(shop, receipt), address="ann@example.org", message_id="x@y")


def counted(
    *, taken: int = 0, repeated: int = 0, left_alone: int = 0, unreadable: int = 0, set_aside: int = 0, **events: int
) -> dict[str, Any]:
    return {
        "taken": taken, "known": repeated, "not_ours": 0, "left_alone": left_alone, "unreadable": unreadable,
        "set_aside": set_aside,
        "events": events,
    }  # fmt: skip


@pytest.fixture
def pipe(database_url: str, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """The command in a process of its own, with a message on its standard input."""

    def call(data: bytes, *options: str) -> dict[str, Any]:
        command = ("effects", "email", "bounces", "--stdin", "--json", *options)
        ran = run_typed(tmp_path, environment(database_url), *command, cwd=ROOT, stdin=data)
        assert ran.exit_code == 0, ran.err
        return json.loads(ran.out)

    return call


@pytest.mark.slow
def test_a_mail_server_pipes_a_bounce(data: bytes, run: Run, pipe: Callable[..., dict[str, Any]]) -> None:
    assert pipe(data) == counted(taken=1, bounced_hard=1)
    assert pipe(data) == counted(repeated=1, bounced_hard=1)
    shown = run("email", "show", "order:7")
    assert "bounced" in shown.out
    assert "dsn_5.1.1" in shown.out
    assert "hard_bounce" in run("email", "suppressions", "show", "ann@example.org").out


@pytest.mark.slow
def test_the_recipient_of_a_pipe_shows_the_message(data: bytes, pipe: Callable[..., dict[str, Any]]) -> None:
    to = next(line for line in data.decode().splitlines() if line.startswith("To: "))[4:]
    assert pipe(data.replace(to.encode(), b"b@x.example"), "--recipient", to)["taken"] == 1


def test_a_maildir_and_a_mailbox_are_read(
    data: bytes, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("new", "cur"):
        (tmp_path / "bounces" / name).mkdir(parents=True)
    (tmp_path / "bounces" / "new" / "1").write_bytes(data)
    answer = run("email", "bounces", "--maildir", str(tmp_path / "bounces"), "--json")
    assert json.loads(answer.out) == counted(taken=1, bounced_hard=1)
    with ImapPeer([data, b"Subject: hello\r\n\r\nhello"]) as server:
        monkeypatch.setenv("EFFECTS_EMAIL_BOUNCES_URL", server.url("INBOX"))
        assert json.loads(run("email", "bounces", "--imap", "-", "--json").out) == counted(repeated=1, left_alone=1)
        assert server.seen == {1, 2}


def test_what_a_pipe_gave_is_kept_by_the_mail_server_until_it_is_taken(run: Run, tmp_path: Path) -> None:
    """Here the database is not there. After another exit code the report would be lost: a bounce is not bounced."""
    answer = run("email", "bounces", "--stdin", url=f"sqlite:///{tmp_path / 'away.db'}")
    assert answer.exit_code == 75
    assert answer.err.startswith("error: there is no database ")


def test_what_cannot_be_read_stops_no_other(data: bytes, run: Run, tmp_path: Path) -> None:
    for name in ("new/0", "cur"):  # a folder among the messages stands for a file of another user
        (tmp_path / "bounces" / name).mkdir(parents=True)
    (tmp_path / "bounces" / "new" / "1").write_bytes(data)
    answer = run("email", "bounces", "--maildir", str(tmp_path / "bounces"), "--json")
    assert (answer.exit_code, json.loads(answer.out)) == (1, counted(taken=1, unreadable=1, bounced_hard=1))
    with ImapPeer([None, data]) as server:
        answer = run("email", "bounces", "--imap", server.url("INBOX"), "--json")
        assert (answer.exit_code, json.loads(answer.out)) == (1, counted(repeated=1, unreadable=1))
        assert server.seen == {2}


@pytest.mark.slow
def test_a_message_that_ends_its_reader_is_read_twice_and_set_aside(
    data: bytes, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here it takes more of the processor than it may. None behind it waits; `doctor` counts it until it is read."""
    monkeypatch.setattr(reading, "CPU_SECONDS", 0.2)
    poison = _nested(MULTIPARTS_MAX) + b"\n" * 900_000
    new, cur = tmp_path / "bounces" / "new", tmp_path / "bounces" / "cur"
    for folder in (new, cur):
        folder.mkdir(parents=True)
    command = ("email", "bounces", "--maildir", str(tmp_path / "bounces"), "--json")
    (new / "1").write_bytes(poison)
    for number, expected in enumerate(
        [
            counted(taken=1, unreadable=1, bounced_hard=1),
            counted(repeated=1, unreadable=1),
            counted(repeated=1, set_aside=1),
        ]
    ):
        (new / f"2{number}").write_bytes(data)
        answer = run(*command)
        assert (answer.exit_code, json.loads(answer.out)) == (1, expected)
    assert (list(new.iterdir()), (cur / "1:2,FS").read_bytes()) == ([], poison)
    with ImapPeer([poison, data]) as server:  # the same again: a person has put it back
        for expected in (counted(repeated=1, unreadable=1), counted(unreadable=1), counted(set_aside=1)):
            assert json.loads(run("email", "bounces", "--imap", server.url("INBOX"), "--json").out) == expected
        assert (server.seen, server.flagged) == ({1, 2}, {1})
    assert _set_aside(run) == ["1 bounces could not be read within 7 days, and were set aside"]
    monkeypatch.setattr(reading, "CPU_SECONDS", 60.0)  # a newer release can read it
    (new / "1").write_bytes(poison)
    assert json.loads(run(*command).out) == counted(left_alone=1)
    assert _set_aside(run) == []


def test_a_mailbox_that_refuses_the_login_is_a_finding_until_it_opens(run: Run) -> None:
    """Cron runs the command, and no one reads what it prints."""
    with ImapPeer([], fault="login") as server:
        url = server.url("INBOX")
        for _ in range(2):
            assert run("email", "bounces", "--imap", url).exit_code == 2
        [finding] = [each for each in run("doctor", "--json").json if each["check"] == "bounces"]
        assert "refuses the login" in finding["text"]
        assert PASSWORD not in finding["text"]
        assert finding["text"] in run("status").out
        server.fault = ""
        assert run("email", "bounces", "--imap", url).exit_code == 0
    assert "refuses the login" not in run("status").out


def _set_aside(run: Run) -> list[str]:
    return [finding["text"] for finding in run("doctor", "--json").json if finding["check"] == "set aside"]


def _nested(count: int) -> bytes:
    return b"".join(b"Content-Type: multipart/mixed; boundary=%d\n\n--%d\n" % (n, n) for n in range(count))


def test_a_reader_that_is_killed_is_replaced() -> None:
    bounce = CASE.message(to="b@x.example", address="ann@example.org", message_id="x@y")
    with closing(reading.ReportReader()) as reader:
        assert reader.read(b"Subject: hello\n\nhello") is None
        assert reader._process is not None
        reader._process.kill()
        with pytest.raises(reading.ReportUnreadableError):
            reader.read(bounce)
        assert reader.read(bounce) == read_report(bounce)


def test_what_cannot_be_read_is_an_error(shop: Effects, run: Run, tmp_path: Path) -> None:
    answers = [
        run("email", "bounces"), run("email", "bounces", "--stdin", "--maildir", "x"),
        run("email", "bounces", "--maildir", str(tmp_path)), run("email", "bounces", "--imap", "imap://u:hunter2@127.0.0.1:1/"),
    ]  # fmt: skip
    assert [answer.exit_code for answer in answers] == [2, 2, 2, 2]
    assert not any("hunter2" in answer.err for answer in answers)
