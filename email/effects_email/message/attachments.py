"""Attachments: named at the call, read again when the message is built, and the same bytes both times.

Those that were given as bytes are kept with their message, sealed where there is a key, until it is forgotten.
"""

from __future__ import annotations

import hashlib
import mimetypes
import re
import threading
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from sqlalchemy import Connection, Row

from effects import Effects, EffectsError
from effects.extend.secrets import SealedColumn
from effects.extend.text import UNSAFE, described
from effects_email.errors import AttachmentInvalid, AttachmentMissing, ContentChanged
from effects_email.message.address import is_utf8
from effects_email.message.invite import CALENDAR, FILENAME
from effects_email.message.source import Attachment, MessageSource
from effects_email.tables import sent as table

ENCODED_BYTES_MAX = 10 * 1024 * 1024  # of all files of a message, in base64: what most relays take
STORED = "storage:"
OWN_BYTES = "bytes:"  # the URL of a file whose bytes are kept with the message
FILENAME_BYTES_MAX = 240
_TYPE = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]{0,126}/[a-z0-9][a-z0-9!#$&^_.+-]{0,126}")
_CONTENT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,99}")
_CID = re.compile(r"\bcid:([A-Za-z0-9][A-Za-z0-9._@-]{0,99})")
_PATH = re.compile(r"[/\\]")
_NO_FILES = ("multipart/", "message/")
_PIECE = 1024 * 1024
_KEPT = 4  # files, of 10 MiB at most, that many messages of one batch may share


def write_files(app: Effects, connection: Connection, key: str, files: Mapping[str, bytes]) -> None:
    """Write the files of a message.

    Args:
        key: of the message, which is written.
        files: by their sha256.
    """
    for sha256, data in files.items():
        file_id = _id(key, sha256)
        sealed = app.keys.seal(data, **_context(file_id)) if app.keys.ids else None
        table.insert_file(app.store, connection, file_id, key, content=None if sealed else data, sealed=sealed)


def _stored_bytes(app: Effects, key: str, sha256: str) -> bytes:
    """A file of a message.

    Raises:
        AttachmentMissing: it is not there, or its key is not at hand.
    """
    with app.store.read() as connection:
        return _read(app, connection, _id(key, sha256))


def replace_file(
    app: Effects, connection: Connection, key: str, sha256: str, change: Callable[[bytes], bytes]
) -> bytes:
    """Change a file of a message, which has another hash then.

    Returns:
        Its bytes.

    Raises:
        AttachmentMissing: it is not there, or its key is not at hand.
    """
    changed = change(_read(app, connection, _id(key, sha256)))
    table.delete_file(app.store, connection, _id(key, sha256))
    write_files(app, connection, key, {hashlib.sha256(changed).hexdigest(): changed})
    return changed


def _read(app: Effects, connection: Connection, file_id: str) -> bytes:
    row = table.find_file(app.store, connection, file_id)
    if row is None:
        raise AttachmentMissing("an attachment is no longer stored", code="attachment_missing")
    return bytes(row.content) if row.sealed is None else app.keys.open(bytes(row.sealed), **_context(file_id))


def sealed_columns() -> list[SealedColumn]:
    """What `effects keys` counts and rotates."""
    return [SealedColumn(table="email_files", column="sealed", id_column="id", columns=(), context=_context_of)]


def _id(key: str, sha256: str) -> str:
    return f"{sha256}:{key}"


def _context_of(row: Row[Any]) -> dict[str, str]:
    return _context(row.id)


def _context(file_id: str) -> dict[str, str]:
    return {"table": "email_files", "row": file_id, "field": "content"}


@dataclass(frozen=True, slots=True)
class File:
    """A file to attach: its bytes, or a reference, which must be there, unchanged, until the message has left.

    Args:
        source: a path, or `storage:` and the name of an object in effects' storage, such as a report's artifact; or
            the bytes themselves, which are written in the message's transaction, sealed, and kept as long as its words.
        filename: what the recipient sees, at most 240 bytes, no path. Default the source's last part; bytes need one.
        content_type: default by the file name's ending, else `application/octet-stream`.
        content_id: an inline image: the HTML shows it by `<img src="cid:logo">` for `logo`.
    """

    source: str | Path | bytes
    filename: str | None = None
    content_type: str | None = None
    content_id: str | None = None

    def __repr__(self) -> str:
        """Without the bytes."""
        source = f"<{len(self.source)} bytes>" if isinstance(self.source, bytes) else repr(self.source)
        return f"File({source}, filename={self.filename!r})"


class _Invitation(File):
    __slots__ = ()


def invitation(calendar: bytes, content_type: str) -> File:
    """The file of a calendar invitation, of a type that no file of a caller's may have."""
    return _Invitation(calendar, filename=FILENAME, content_type=content_type)


def is_invitation(attachment: Attachment) -> bool:
    """Whether it is a calendar invitation, which `build` shows in the message's body too."""
    return attachment.content_type.startswith(CALENDAR)


def listed(files: Iterable[File | str | Path]) -> tuple[File, ...]:
    """The files of a call.

    Raises:
        AttachmentInvalid: it is not a list of files.
    """
    if isinstance(files, str | bytes | Path | File) or not isinstance(files, Iterable):
        raise AttachmentInvalid(f"attachments is {described(files)}; give a list of paths or Files")
    return tuple(file if isinstance(file, File) else File(file) for file in files)


def describe(app: Effects, files: Iterable[File | str | Path]) -> tuple[Attachment, ...]:
    """Check the files and take their sizes and hashes.

    Raises:
        AttachmentInvalid: one is missing, oddly named, or all together are over 10 MiB in base64 (7.3 MiB as files).
    """
    attachments = tuple(_describe(app, file) for file in listed(files))
    encoded = sum(_encoded(attachment.size_bytes) for attachment in attachments)
    if encoded > ENCODED_BYTES_MAX:
        raise AttachmentInvalid(
            f"attachments: {encoded:,} bytes in base64, and the limit of a message is {ENCODED_BYTES_MAX:,}; "
            "send a link to the file instead"
        )
    ids = [attachment.content_id for attachment in attachments if attachment.content_id is not None]
    if len(set(ids)) < len(ids):
        raise AttachmentInvalid("attachments: two inline images have the same content_id")
    return attachments


class Files:
    """Reads attachments for the worker. Keeps the last few: many messages of a batch may have the same."""

    def __init__(self, app: Effects) -> None:
        self._app = app
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, source: MessageSource, key: str) -> dict[str, bytes]:
        """The bytes of every attachment by its sha256.

        Args:
            key: of the message.

        Raises:
            AttachmentMissing: one cannot be read now.
            ContentChanged: one is not what it was at the call.
        """
        return {attachment.sha256: self._read(attachment, key) for attachment in source.attachments}

    def _read(self, attachment: Attachment, key: str) -> bytes:
        with self._lock:
            if attachment.sha256 in self._kept:
                self._kept.move_to_end(attachment.sha256)
                return self._kept[attachment.sha256]
        try:
            if attachment.url == OWN_BYTES:
                data = _stored_bytes(self._app, key, attachment.sha256)
            else:
                data = b"".join(_pieces(self._app, attachment.url, attachment.size_bytes + 1))
        except (OSError, EffectsError) as error:
            raise AttachmentMissing(
                f"an attachment cannot be read ({type(error).__name__})", code="attachment_missing"
            ) from None
        if len(data) != attachment.size_bytes or hashlib.sha256(data).hexdigest() != attachment.sha256:
            raise ContentChanged("an attachment is not what it was at the call", code="attachment_changed")
        with self._lock:
            self._kept[attachment.sha256] = data
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return data


def data_of(app: Effects, attachment: Attachment) -> bytes:
    """The bytes of a file that was given by its path.

    Raises:
        AttachmentInvalid: it cannot be read.
    """
    try:
        return b"".join(_pieces(app, attachment.url, attachment.size_bytes))
    except (OSError, EffectsError) as error:
        kind = type(error).__name__
        raise AttachmentInvalid(f"attachments: {attachment.filename!r} cannot be read ({kind})") from None


def inline_images(html: str, attachments: Iterable[Attachment], contents: Mapping[str, bytes]) -> str:
    """The HTML with its `cid:` images as `data:` URLs, for a browser.

    Args:
        contents: the bytes of each attachment by its sha256.
    """
    images = {attachment.content_id: attachment for attachment in attachments if attachment.content_id}

    def url(match: re.Match[str]) -> str:
        image = images.get(match[1])
        if image is None:
            return match[0]
        return f"data:{image.content_type};base64,{b64encode(contents[image.sha256]).decode()}"

    return _CID.sub(url, html)


def _describe(app: Effects, file: File) -> Attachment:
    _check_types(file)
    url = OWN_BYTES if isinstance(file.source, bytes) else _url(file.source)
    filename = file.filename if file.filename is not None else url.removeprefix(STORED).rpartition("/")[2]
    if url == OWN_BYTES and file.filename is None:
        raise AttachmentInvalid("attachments: bytes need a name: File(data, filename='invoice.pdf')")
    if not filename or UNSAFE.search(filename) or _PATH.search(filename) or len(filename.encode()) > FILENAME_BYTES_MAX:
        raise AttachmentInvalid(
            f"attachments: a file name has 1 to {FILENAME_BYTES_MAX} bytes, no path and no control character"
        )
    content_type = file.content_type or _guessed_type(filename)
    if not (_TYPE.fullmatch(content_type) or isinstance(file, _Invitation)) or content_type.startswith(_NO_FILES):
        raise AttachmentInvalid("attachments: content_type is written type/subtype, such as application/pdf")
    if file.content_id is not None and not _CONTENT_ID.fullmatch(file.content_id):
        raise AttachmentInvalid("attachments: a content_id has letters, digits, . _ @ and -, such as logo")
    if isinstance(file.source, bytes):
        size, sha256 = len(file.source), hashlib.sha256(file.source).hexdigest()
    else:
        size, sha256 = _measured(app, url, filename)
    return Attachment(
        url=url,
        filename=filename,
        content_type=content_type,
        size_bytes=size,
        sha256=sha256,
        content_id=file.content_id,
    )


def _guessed_type(filename: str) -> str:
    """By its ending. What is compressed is not of the type below (`.csv.gz`), and a message that is attached as a file
    (`.eml`) is a file: its own part type could not be in base64.
    """
    content_type, compression = mimetypes.guess_type(filename)
    if content_type is None or compression is not None or content_type.startswith(_NO_FILES):
        return "application/octet-stream"
    return content_type


def _check_types(file: File) -> None:
    if not isinstance(file.source, str | Path | bytes):
        raise AttachmentInvalid(
            f"attachments: a file is given as {described(file.source)}; give a path, bytes, or storage: and the name "
            "of an object"
        )
    for name in ("filename", "content_type", "content_id"):
        value = getattr(file, name)
        if value is not None and not isinstance(value, str):
            raise AttachmentInvalid(f"attachments: {name} is {described(value)}; give a text")


def _url(source: str | Path) -> str:
    if isinstance(source, str) and source.startswith(STORED):
        return source
    if isinstance(source, str) and "://" in source:
        raise AttachmentInvalid("attachments: give a path, or storage: and the name of an object")
    path = str(Path(source).absolute())
    if "\0" in path or not is_utf8(path):
        raise AttachmentInvalid(
            "attachments: a path holds NUL or bytes that are not UTF-8: rename the file, or give its bytes"
        )
    return path


def _measured(app: Effects, url: str, filename: str) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    try:
        for piece in _pieces(app, url, ENCODED_BYTES_MAX):
            digest.update(piece)
            size += len(piece)
    except (OSError, EffectsError) as error:
        raise AttachmentInvalid(f"attachments: {filename!r} cannot be read ({type(error).__name__})") from None
    return size, digest.hexdigest()


def _pieces(app: Effects, url: str, at_most: int) -> Iterable[bytes]:
    if url.startswith(STORED):
        yield from _stored(app, url.removeprefix(STORED), at_most)
        return
    left = at_most
    with Path(url).open("rb") as file:
        while left > 0 and (piece := _next(file, left)):
            left -= len(piece)
            yield piece


def _next(file: BinaryIO, left: int) -> bytes:
    return file.read(min(_PIECE, left))


def _stored(app: Effects, name: str, at_most: int) -> Iterable[bytes]:
    yield from app.storage.read(name, 0, at_most)


def _encoded(size: int) -> int:
    """In base64, with a line break after each 76 characters."""
    characters = -(-size // 3) * 4
    return characters + 2 * -(-characters // 76)


def names(files: Sequence[File], attachments: Sequence[Attachment]) -> list[list[str | None]]:
    """The attachments' part of a call's digest. An invitation has its own part: its file has the time of the call.

    Args:
        files: as `listed` gives them.
        attachments: of the same files, as `describe` gives them.
    """
    return [
        [_name(file.source, attachment), file.filename, file.content_type, file.content_id]
        for file, attachment in zip(files, attachments, strict=True)
        if not isinstance(file, _Invitation)
    ]


def _name(source: str | Path | bytes, attachment: Attachment) -> str:
    """Of bytes, their hash: other bytes are other content."""
    return f"{OWN_BYTES}{attachment.sha256}" if isinstance(source, bytes) else str(source)


def contents(files: Sequence[File], attachments: Sequence[Attachment]) -> dict[str, bytes]:
    """The files that were given as bytes, by their sha256.

    Args:
        files, attachments: as of `names`.
    """
    return {
        attachment.sha256: file.source
        for file, attachment in zip(files, attachments, strict=True)
        if isinstance(file.source, bytes)
    }
