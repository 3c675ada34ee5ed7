"""The ways in: ASGI by Starlette's request, WSGI by a2wsgi, and a view of Django. All lead to one function."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from typing import Any, TypeAlias
from urllib.parse import quote

from effects.errors import ConfigurationError
from effects.kit.web_apps import AsgiApp, Receive, Scope, Send, WsgiApp, lifespan, read_in_threads, send_pieces
from effects.web.exchange import BODY_BYTES_MAX, PageAnswer, PageRequest
from effects.web.security import BARE_HEADERS, Person

Handler: TypeAlias = Callable[[PageRequest], PageAnswer]
_NOT_MODIFIED = 304  # its length would be that of the page
_METHODS = ("GET", "HEAD", "POST")


def asgi_door(handle: Handler, threads: Executor) -> AsgiApp:
    """An ASGI app; `handle` runs in one of these threads. A body of more than 16 KiB is answered 413, unread."""
    requests = load("starlette.requests")

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await lifespan(receive, send)
        elif scope["type"] == "http":
            request = requests.Request(scope, receive)
            answer = await _take(request, requests.ClientDisconnect, handle, threads)
            if answer is not None:
                await _send(answer, scope["method"], receive, send, threads)
        else:
            await send({"type": "websocket.close", "code": 1000})

    return app


async def _take(request: Any, gone: type[Exception], handle: Handler, threads: Executor) -> PageAnswer | None:
    """The answer; None where the client has left."""
    if request.method not in _METHODS:
        return PageAnswer(405, headers=(*BARE_HEADERS, ("allow", ", ".join(_METHODS))))
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > BODY_BYTES_MAX:
                return PageAnswer(413, headers=BARE_HEADERS)
    except gone:
        return None
    return await asyncio.get_running_loop().run_in_executor(threads, handle, _of_starlette(request, bytes(body)))


def _of_starlette(request: Any, body: bytes) -> PageRequest:
    scope = request.scope
    mount = scope.get("root_path", "").rstrip("/")
    path = scope["path"]
    return PageRequest(
        method=request.method,
        path=path[len(mount) :] if path == mount or path.startswith(f"{mount}/") else path,
        mount=quote(mount),
        query=scope.get("query_string", b"").decode("latin-1"),
        headers={name: ", ".join(request.headers.getlist(name)) for name in request.headers},
        cookies=dict(request.cookies),
        body=body,
        scheme=scope.get("scheme", "http"),
        client=request.client.host if request.client is not None else None,
        host=scope,
    )


async def _send(answer: PageAnswer, method: str, receive: Receive, send: Send, threads: Executor) -> None:
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in _headers(answer)]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    if answer.pieces is not None and method != "HEAD":
        await send_pieces(answer.pieces, receive, send, threads)
    else:
        await send({"type": "http.response.body", "body": b"" if method == "HEAD" else answer.body})


def _headers(answer: PageAnswer) -> list[tuple[str, str]]:
    if answer.pieces is not None:
        return [("content-type", answer.content_type), *answer.headers]
    kind = [("content-type", answer.content_type)] if answer.body else []
    length = [] if answer.status == _NOT_MODIFIED else [("content-length", str(len(answer.body)))]
    return [*kind, *length, *answer.headers]


def wsgi_door(app: AsgiApp) -> WsgiApp:
    """The same as a WSGI app, by a2wsgi, which calls it on an event loop in its own thread."""
    inner: WsgiApp = load("a2wsgi").ASGIMiddleware(app)

    def door(environ: Mapping[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if _is_readable(environ):
            return inner(environ, start_response)
        start_response("400 Bad Request", _headers(PageAnswer(400, headers=BARE_HEADERS)))
        return [b""]

    return door


def _is_readable(environ: Mapping[str, Any]) -> bool:
    """Whether path and query are what a2wsgi can pass on: bytes in UTF-8, and ASCII."""
    try:
        environ.get("PATH_INFO", "").encode("latin-1").decode()
        return bool(environ.get("QUERY_STRING", "").isascii())
    except UnicodeError:
        return False


def django_urls(
    answer: Callable[[PageRequest, Person | Exception | None], PageAnswer],
    admit: Callable[[PageRequest], Person | Exception | None],
    threads: Executor,
) -> list[Any]:
    """URLs of Django that lead every path to the dashboard.

    The guard is asked in Django's own thread: it may use Django's session, user and models.
    """
    http, urls = load("django.http"), load("django.urls")

    def view(request: Any, path: str = "") -> Any:
        if request.method not in _METHODS:
            return http.HttpResponseNotAllowed(_METHODS, headers=dict(BARE_HEADERS))
        page_request = _of_django(request, path)
        answered = threads.submit(answer, page_request, admit(page_request)).result()
        kind: Any = http.HttpResponse if answered.pieces is None else http.StreamingHttpResponse
        body: Any = answered.body if answered.pieces is None else answered.pieces
        if answered.pieces is not None and hasattr(request, "scope"):
            body = read_in_threads(answered.pieces, threads)  # Django would hold all that a plain iterator gives
        response = kind(body, status=answered.status, content_type=answered.content_type)
        for name, value in answered.headers:
            if name == "set-cookie":
                response.cookies.load(value)
            else:
                response[name] = value
        return response

    view.csrf_exempt = True  # type: ignore[attr-defined] # each form has a token of ours
    return [urls.re_path(r"^(?P<path>.*)$", view, name="effects-dashboard")]


def _of_django(request: Any, path: str) -> PageRequest:
    return PageRequest(
        method=request.method,
        path=f"/{path}",
        mount=quote(request.path[: len(request.path) - len(path)].rstrip("/")),
        query=request.META.get("QUERY_STRING", ""),
        headers={name.lower(): value for name, value in request.headers.items()},
        cookies=dict(request.COOKIES),
        body=request.body,
        scheme=request.scheme,
        client=request.META.get("REMOTE_ADDR"),
        host=request,
    )


def load(name: str) -> Any:
    """A library that comes with an extra.

    Raises:
        ConfigurationError: it is not installed; names the extra.
    """
    package = name.partition(".")[0]
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ConfigurationError(f"the dashboard needs {package}: pip install 'effects-toolkit[web]'") from None
