"""The maildir transport: whole files or none, which any mail program reads."""

from __future__ import annotations

import mailbox
from pathlib import Path

import pytest

from effects.errors import LeaseLost
from effects_email.transport.url import open_transport
from tests.email.wire.conftest import ANN, BEN, BODY, SENDER, Released, outgoing_message


def test_a_message_is_a_file_that_mail_programs_read(tmp_path: Path) -> None:
    transport = open_transport("dev", f"maildir:{tmp_path}/mail")
    assert transport.ask(outgoing_message()) is False
    released = Released()
    send_result = transport.send(outgoing_message(ANN, BEN), release=released, seconds=5)
    assert (send_result.verdict.kind, released.calls) == ("accepted", 1)
    assert set(send_result.recipients) == {ANN, BEN}
    [message] = mailbox.Maildir(tmp_path / "mail")
    assert message["Subject"] == "hello"
    assert message["Return-Path"] == f"<{SENDER}>"
    assert message.get_all("Delivered-To") == [ANN, BEN]
    [file] = (tmp_path / "mail" / "new").iterdir()
    assert file.read_bytes().endswith(BODY)
    assert file.name == send_result.provider_id
    assert transport.ask(outgoing_message()) is True


def test_the_same_message_twice_is_one_file(tmp_path: Path) -> None:
    transport = open_transport("dev", f"maildir:{tmp_path}/mail")
    for _ in range(2):
        transport.send(outgoing_message(), release=Released(), seconds=5)
    assert len(list((tmp_path / "mail" / "new").iterdir())) == 1


def test_a_folder_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    open_transport("dev", "maildir:mail").send(outgoing_message(), release=Released(), seconds=5)
    assert len(list((tmp_path / "mail" / "new").iterdir())) == 1


def test_without_the_release_nothing_is_left(tmp_path: Path) -> None:
    transport = open_transport("dev", f"maildir:{tmp_path}/mail")
    with pytest.raises(LeaseLost):
        transport.send(outgoing_message(), release=Released(LeaseLost()), seconds=5)
    assert [path for path in (tmp_path / "mail").rglob("*") if path.is_file()] == []


def test_an_unwritable_folder_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "mail").write_text("a file")
    send_result = open_transport("dev", f"maildir:{tmp_path}/mail").send(
        outgoing_message(), release=Released(), seconds=5
    )
    assert (send_result.verdict.kind, send_result.verdict.code) == ("config", "maildir_failed")


def test_an_envelope_cannot_write_headers(tmp_path: Path) -> None:
    transport = open_transport("dev", f"maildir:{tmp_path}/mail")
    transport.send(outgoing_message("a@b.org\r\nBcc: evil@example.org"), release=Released(), seconds=5)
    [message] = mailbox.Maildir(tmp_path / "mail")
    assert message["Bcc"] is None
