"""Messages as files in a maildir, for development: nothing leaves this machine.

    maildir:mail            a folder, from the working directory
    maildir:/var/tmp/mail

Each message is a file in `new/`, by the maildir rules: written in `tmp/`, flushed to disk, renamed. A mail program, or
Python's `mailbox.Maildir`, reads it. Above the message's own bytes stand a `Return-Path` and a `Delivered-To` for each
recipient: the envelope, in which blind copies show.
"""

from __future__ import annotations

import hashlib
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from io import BufferedWriter
from pathlib import Path

from effects.extend.files import create_private
from effects_email.transport.base import OutgoingMessage, SendResult, Verdict
from effects_email.transport.url import TransportURL

_ACCEPTED = Verdict(kind="accepted", code="maildir", reason="written to the maildir")
_NO_FOLDER = Verdict(kind="config", code="maildir_failed", reason="the maildir cannot be written to")
_FOLDERS = ("tmp", "new", "cur")


def open_url(url: TransportURL) -> MaildirTransport:
    """For `open_transport`.

    Raises:
        ConfigurationError: there is no folder in the URL, or more than one.
    """
    if url.host or not url.path:
        url.refuse("names no folder; give maildir:folder or maildir:/path/to/folder")
    url.end()
    return MaildirTransport(url.name, Path(url.path))


class MaildirTransport:
    """Writes letters into `folder`, which is made when the first one comes. Thread-safe.

    A message that is sent again replaces its own file if no one has read it; `ask` knows whether it is there. A crash
    leaves at most a file in `tmp/`.
    """

    key_lifetime_seconds = None
    rate_per_second = None
    traceable = True

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder.absolute()

    def __repr__(self) -> str:
        return f"MaildirTransport({self.name!r})"

    def send(self, outgoing: OutgoingMessage, *, release: Callable[[], None], seconds: float) -> SendResult:
        """See `Transport`; one file for all recipients."""
        file = f"{_name(outgoing)}.{socket.gethostname()}".replace("/", "_").replace(":", "_")
        written = self.folder / "tmp" / f"{file}.{os.getpid()}.{time.monotonic_ns()}"
        began = time.monotonic()
        try:
            for folder in _FOLDERS:
                (self.folder / folder).mkdir(mode=0o700, parents=True, exist_ok=True)
            _write(written, _envelope(outgoing) + outgoing.data)
        except OSError:
            return _dispatch(outgoing, _NO_FOLDER, began)
        try:
            release()
            kept = self._keep(written, file)
        finally:
            written.unlink(missing_ok=True)
        return _dispatch(outgoing, _ACCEPTED if kept else _NO_FOLDER, began, file if kept else None)

    def _keep(self, written: Path, file: str) -> bool:
        try:
            written.rename(self.folder / "new" / file)
        except OSError:
            return False
        _flush_folder(self.folder / "new")
        return True

    def ask(self, outgoing: OutgoingMessage) -> bool | None:
        """Whether its file is there, read or not."""
        name = _name(outgoing)
        return any(path for folder in ("new", "cur") for path in (self.folder / folder).glob(f"{name}.*"))

    def close(self) -> None:
        """There is nothing to close."""


def _name(outgoing: OutgoingMessage) -> str:
    """By the message, not by the moment: the same message twice is one file."""
    return f"{int(outgoing.source.date.timestamp())}.{hashlib.sha256(outgoing.message_id.encode()).hexdigest()[:24]}"


def _envelope(outgoing: OutgoingMessage) -> bytes:
    lines = [f"Return-Path: <{outgoing.sender}>", *(f"Delivered-To: {recipient}" for recipient in outgoing.recipients)]
    return "".join(f"{_one_line(line)}\r\n" for line in lines).encode()


def _one_line(text: str) -> str:
    return text.replace("\r", " ").replace("\n", " ")


def _write(path: Path, data: bytes) -> None:
    with BufferedWriter(create_private(path)) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _dispatch(outgoing: OutgoingMessage, verdict: Verdict, began: float, file: str | None = None) -> SendResult:
    return SendResult(
        verdict=verdict,
        recipients=dict.fromkeys(outgoing.recipients, verdict),
        provider_id=file,
        peer="maildir",
        phases={"body": time.monotonic() - began},
    )
