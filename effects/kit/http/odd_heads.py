"""Heads of answers that llhttp refuses or that end too soon, read line by line: the status line is the answer.

What follows it in such a head says little about what the peer did with the request. Each line that can be read is a
header; every other one is dropped, and counted by what is wrong with it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# RFC 9112 §4; blank lines before it, and more than one space in it, are passed over (§2.2).
_STATUS_LINE = re.compile(rb"(?:\r?\n)*HTTP/(0\.9|1\.[0-9]|2\.0)[ \t]+([1-9][0-9]{2})(?:[ \t][^\n]{0,1024})?\r?\n")
_BEGINS_LIKE_ONE = re.compile(rb"[\r\n]*(?:H(?:T(?:T(?:P(?:/[^\n]{0,1024})?)?)?)?)?")
_BLANK_LINE = re.compile(rb"\n\r?\n")
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL = re.compile(rb"[\0-\x08\x0a-\x1f\x7f]")
_LENGTH = re.compile(rb"[0-9]{1,18}")
_SWITCHING_PROTOCOLS = 101  # nothing of ours asks for it


class NotHttp(Exception):
    """No answer can come of it."""


class OddHead(NamedTuple):
    """What could be read of a final answer's head."""

    status: int
    fields: list[tuple[bytes, bytes]]  # at most one of them says how long the body is
    unread: dict[str, int]
    has_end: bool  # one does, or the connection's end is that of the body
    rest: bytes  # behind the head

    def clean(self) -> bytes:
        """The same head as llhttp takes it."""
        lines = b"".join([b"%b: %b\r\n" % field for field in self.fields])
        return b"HTTP/1.1 %d \r\n%b\r\n" % (self.status, lines)


def read_odd_head(raw: bytearray, new_from: int = 0, *, ended: bool = False) -> OddHead | None:
    """The head of the final answer, once its end has come. Interim ones before it are taken out of `raw`.

    Args:
        raw: all that has come.
        new_from: nothing before this place ends the head.
        ended: no more will come; half a line at the end is dropped.

    Raises:
        NotHttp: the first line is not a status line.
    """
    while (line := _STATUS_LINE.match(raw)) is not None:
        status = int(line[2])
        blank = _BLANK_LINE.search(raw, max(line.end() - 1, new_from - 2))
        if status == _SWITCHING_PROTOCOLS:
            raise NotHttp("the peer switched protocols")
        if status >= 200 and (blank is not None or ended):
            end = None if blank is None else blank.end() - line.end()
            return _head(status, bytes(raw[line.end() :]), end, closes=line[1] in (b"0.9", b"1.0"))
        if blank is None:
            return None
        del raw[: blank.end()]
        new_from = 0
    if _BEGINS_LIKE_ONE.fullmatch(raw) is None:
        raise NotHttp("no status line")
    return None


def _head(status: int, raw: bytes, end: int | None, *, closes: bool) -> OddHead:
    """
    Args:
        end: where the body begins; None if the head was cut.
        closes: the peer closes the connection, if the head does not say otherwise.
    """
    *lines, _ = raw[:end].split(b"\n")
    fields, unread = _fields([line.removesuffix(b"\r") for line in lines if line.strip(b"\r")])
    if end is None:
        unread["the head does not end"] = 1
    closes = closes or any(name.lower() == b"connection" and value.lower() == b"close" for name, value in fields)
    return _framed(OddHead(status, fields, unread, closes, b"" if end is None else raw[end:]))


def _fields(lines: list[bytes]) -> tuple[list[tuple[bytes, bytes]], dict[str, int]]:
    fields: list[tuple[bytes, bytes]] = []
    unread: dict[str, int] = {}
    is_kept = False  # what a folded line continues
    for line in lines:
        name, colon, value = line.partition(b":")
        fault = (
            "a folded line" if line[:1] in (b" ", b"\t")
            else "a line without a colon" if not colon
            else "a name that is not a token" if not _NAME.fullmatch(name)
            else "a control character" if _CONTROL.search(value)
            else None
        )  # fmt: skip
        if fault is None:
            fields.append((name, value.strip(b" \t")))
        else:
            unread[fault] = unread.get(fault, 0) + 1
            if fault == "a folded line" and is_kept:
                fields.pop()
        is_kept = fault is None
    return fields, unread


def _framed(head: OddHead) -> OddHead:
    """The head with one header that tells the body's length, if there is no doubt about it (RFC 9112 §6.3)."""
    lengths = [value for name, value in head.fields if name.lower() == b"content-length"]
    codings = [value for name, value in head.fields if name.lower() == b"transfer-encoding"]
    fields = [field for field in head.fields if field[0].lower() not in (b"content-length", b"transfer-encoding")]
    if codings:
        framing = (b"transfer-encoding", b"chunked") if [text.lower() for text in codings] == [b"chunked"] else None
    else:
        values = {part.strip(b" \t") for value in lengths for part in value.split(b",")}
        framing = (b"content-length", values.pop()) if len(values) == 1 else None
        if framing is not None and not _LENGTH.fullmatch(framing[1]):
            framing = None
    if framing is not None:
        return head._replace(fields=[*fields, framing], has_end=True)
    if not lengths and not codings:
        return head
    head.unread["a length in doubt"] = len(lengths) + len(codings)
    return head._replace(fields=fields, has_end=False)
