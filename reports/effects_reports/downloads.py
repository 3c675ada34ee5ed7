"""Files of reports over HTTP: links that are signed and end soon, and the ASGI app that answers them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Generator, Iterator
from typing import TypeAlias

import msgspec

from effects import DeliveryError, Effects, ObjectMissing
from effects.extend.arguments import arguments
from effects.extend.files import attachment
from effects.extend.jobs import app_of
from effects.extend.process import own_logger
from effects.extend.receivers import web_apps
from effects_reports.api import ReportStatus, ready_status
from effects_reports.delivery.link_tokens import LINK_SECONDS, Link, LinkTerms, read_token, write_link
from effects_reports.errors import LinkExpired, LinkInvalid, ReportInvalid, ReportNotFound, ReportStateError
from effects_reports.tables.links import use_link
from effects_reports.tables.reports import count_download


@arguments.checked(ReportInvalid, run_id=arguments.NAME, base_url=arguments.text)
def download_url(
    run_id: str,
    base_url: str,
    *,
    seconds: float = LINK_SECONDS,
    uses: int | None = None,
    principal: str | None = None,
    effects: Effects | None = None,
) -> str:
    """A link to a run's file, as `download_app` serves it.

    Args:
        run_id: of the run, as its receipt has it.
        base_url: where that app is mounted: `https://shop.example/downloads`.
        seconds: how long it is good for, by this host's clock. Default 15 minutes, at most 7 days.
        uses: for how many downloads, 1 to 1,000,000; default any number. They are counted in a row of this link's own,
            which is written at once. A download that is resumed within an hour is one.
        principal: who alone may use it, in the app's own words: what the `principal` of `download_app` gives.
        effects: the Effects to use; default the process's.

    Raises:
        ReportNotFound, ReportStateError: there is no such file now.
        KeyUnavailable: EFFECTS_KEYS holds no key to sign with.
        ReportInvalid: `seconds` or `uses` is out of bounds; or `principal` is empty, which would be everybody who is
            not signed in.
    """
    terms = LinkTerms(seconds=seconds, uses=uses, principal=principal)
    terms.check()
    app = app_of(effects)
    sha256 = str(ready_status(run_id, effects=app).sha256)
    with app.store.begin() if uses is not None else app.store.read() as connection:
        return write_link(app, connection, run_id, sha256, base_url, terms)


def read_link(token: str, principal: str | None, *, effects: Effects | None = None) -> Link:
    """What a link's last part is for. Asks no database.

    Raises:
        LinkExpired: it was good once.
        LinkInvalid: it never was, or not for this person.
    """
    return read_token(app_of(effects), token, principal)


_SINGLE_RANGE = re.compile(r"bytes=\s*([0-9]{0,19})-([0-9]{0,19})\s*")


class UnsatisfiableError(ValueError):
    """The range begins behind the end of the file."""


def asked_range(header: str | None, size: int) -> tuple[int, int] | None:
    """(first byte, end) of the only range that a Range header names; None for the whole file.

    Several ranges, another unit and what is no range are answered with the whole file, as the standard allows.

    Raises:
        UnsatisfiableError: there is nothing in it.
    """
    match = _SINGLE_RANGE.fullmatch(header) if header else None
    if match is None or match[1] == match[2] == "":
        return None
    if match[1] == "":  # the last so many
        start, stop = size - min(int(match[2]), size), size
    else:
        start, stop = int(match[1]), min(int(match[2] or size) + bool(match[2]), size)
        if match[2] and int(match[2]) < start:
            return None
    if start >= stop:
        raise UnsatisfiableError
    return start, stop


Principal: TypeAlias = Callable[[web_apps.Scope], str | None]
Headers: TypeAlias = dict[str, str]

_REDIRECT_SECONDS = 60.0
_RETRY_SECONDS = 5
_log = own_logger("effects.reports.downloads")
# No file is executed, sniffed, cached or leaked, whatever it contains.
_ALWAYS = {
    "x-content-type-options": "nosniff",
    "content-security-policy": "default-src 'none'; sandbox",
    "cache-control": "private, no-store",
    "referrer-policy": "no-referrer",
}


class DownloadAnswer(msgspec.Struct):
    """A response; `body` yields its bytes, or is None."""

    status: int
    headers: Headers
    body: Generator[bytes, None, None] | None = None


def download_app(*, principal: Principal | None = None, effects: Effects | None = None) -> web_apps.AsgiApp:
    """An ASGI app that serves links: mount it where `download_url`'s `base_url` points.

    The last part of the path is the link. GET and HEAD; one range of bytes (206, 416), If-Range and If-None-Match
    against the file's SHA-256. Each GET from the first byte on counts as a download. 404 for what is no link of ours or
    another person's, 410 for one whose time or uses are over or whose file is gone, 503 while the storage is
    unavailable. A use is counted when the file has been opened, before its first byte leaves.

    On object storage GET is redirected (307) to a presigned address that is good for 60 s.

    Args:
        principal: the requester, from the ASGI scope: after your own authentication. Without it, links made for
            one person open for no one.
        effects: the Effects to use; default the process's.
    """

    async def app(scope: web_apps.Scope, receive: web_apps.Receive, send: web_apps.Send) -> None:
        if scope["type"] == "lifespan":
            await web_apps.lifespan(receive, send)
        elif scope["type"] == "http":
            who = principal(scope) if principal is not None else None
            answer = await asyncio.to_thread(_answer, app_of(effects), scope, who)
            await _send(answer, receive, send, bodiless=scope["method"] == "HEAD")

    return app


def _answer(app: Effects, scope: web_apps.Scope, who: str | None) -> DownloadAnswer:
    if scope["method"] not in ("GET", "HEAD"):
        return _refusal(405, "GET or HEAD", {"allow": "GET, HEAD"})
    try:
        link = read_link(scope["path"].rpartition("/")[2], who, effects=app)
        status = ready_status(link.run_id, effects=app)
    except LinkExpired as error:
        return _refusal(410, str(error))
    except LinkInvalid as error:
        return _refusal(404, str(error))
    except (ReportNotFound, ReportStateError):
        return _gone()
    if not str(status.sha256).startswith(link.digest):
        return _gone()
    try:
        return _file(app, scope, status, link.id)
    except ObjectMissing:
        return _gone()
    except DeliveryError as error:
        _log.error("report.download_failed", extra={"run": status.run_id, "code": error.code})
        return _refusal(503, "The storage is unavailable.", {"retry-after": str(_RETRY_SECONDS)})


def _file(app: Effects, scope: web_apps.Scope, status: ReportStatus, link_id: str | None) -> DownloadAnswer:
    request_headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    tag, size = f'"{status.sha256}"', status.bytes or 0
    headers = {
        "content-type": status.content_type or "application/octet-stream",
        "content-disposition": attachment(status.filename or status.run_id),
        "accept-ranges": "bytes",
        "etag": tag,
        **_ALWAYS,
    }
    if tag in request_headers.get("if-none-match", "") or request_headers.get("if-none-match") == "*":
        return DownloadAnswer(304, headers)
    try:
        part = asked_range(request_headers.get("range"), size) if request_headers.get("if-range", tag) == tag else None
    except UnsatisfiableError:
        return _refusal(416, "No such bytes.", {"content-range": f"bytes */{size}"})
    answer = _from_storage(app, scope, status, headers, part)
    is_resumed = part is not None and part[0] > 0
    if link_id is not None and scope["method"] == "GET" and not use_link(app.store, link_id, resumed=is_resumed):
        if answer.body is not None:
            answer.body.close()
        return _refusal(410, "This link has been used as often as it may be.")
    if scope["method"] == "GET" and not is_resumed:
        count_download(app.store, status.run_id)
        _log.info("report.downloaded", extra={"run": status.run_id})
    return answer


def _from_storage(
    app: Effects, scope: web_apps.Scope, status: ReportStatus, headers: Headers, part: tuple[int, int] | None
) -> DownloadAnswer:
    """Where the bytes are, or themselves. HEAD tells neither: it counts as no use of a link."""
    artifact, size = str(status.artifact), status.bytes or 0
    is_head = scope["method"] == "HEAD"
    if not is_head and (elsewhere := app.storage.link(artifact, seconds=_REDIRECT_SECONDS)) is not None:
        return DownloadAnswer(307, {"location": elsewhere, "content-length": "0", **_ALWAYS})
    start, stop = part or (0, size)
    headers["content-length"] = str(stop - start)
    if part is not None:
        headers["content-range"] = f"bytes {start}-{stop - 1}/{size}"
    code = 200 if part is None else 206
    if not is_head:
        return DownloadAnswer(code, headers, _begun(app.storage.read(artifact, start, stop)))
    return DownloadAnswer(code, headers) if app.storage.size(artifact) is not None else _gone()


def _gone() -> DownloadAnswer:
    return _refusal(410, "This file is no longer there.")


def _begun(pieces: Iterator[bytes]) -> Generator[bytes, None, None]:
    """The same pieces, the first of them read now: what goes wrong is known before the headers are sent."""
    first = next(pieces, b"")

    def whole() -> Generator[bytes, None, None]:
        yield first
        yield from pieces

    return whole()


def _refusal(status: int, text: str, headers: Headers | None = None) -> DownloadAnswer:
    body = f"{text}\n".encode()
    plain = {"content-type": "text/plain; charset=utf-8", "content-length": str(len(body)), **_ALWAYS}
    return DownloadAnswer(status, {**plain, **(headers or {})}, (piece for piece in (body,)))


async def _send(answer: DownloadAnswer, receive: web_apps.Receive, send: web_apps.Send, *, bodiless: bool) -> None:
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers.items()]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    if answer.body is not None and not bodiless:
        await web_apps.send_pieces(answer.body, receive, send)
    else:
        await send({"type": "http.response.body", "body": b""})
