"""One click and no more mail of that category (RFC 8058): the headers, the link, and the endpoint that they name.

    app.mount("/unsubscribe", asgi_app())   # EFFECTS_UNSUBSCRIBE_URL=https://shop.example/unsubscribe/

A POST unsubscribes at once: no cookie, no login, no redirect. A GET shows a page with a button that POSTs, because
scanners follow the links of a message and must not unsubscribe anybody. Someone who unsubscribes twice is
unsubscribed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from effects import ConfigurationError, Effects, StoreUnavailable
from effects.extend import AnySession, app_of, arguments, web_apps
from effects_email import pages
from effects_email.errors import EmailInvalid, TokenInvalid
from effects_email.message.address import Recipient, spec_of
from effects_email.settings import EmailSettings
from effects_email.suppressions.rows import ALL, new_row, write
from effects_email.suppressions.suppression import TRANSACTIONAL
from effects_email.unsubscribe_token import check_signing, read_token, write_token

BODY_BYTES_MAX = 16 * 1024
PARAMETER = "token"
_RETRY_SECONDS = 60
_METHODS = ("GET", "HEAD", "POST")

Page: TypeAlias = Callable[[pages.State, str], str]
Headers: TypeAlias = tuple[tuple[str, str], ...]


def check_unsubscribe(app: Effects, category: str | None) -> None:
    """Refuse, before anything is written, a category whose messages could not be unsubscribed from.

    Raises:
        ConfigurationError: a setting is missing; the message names it.
    """
    if category in (None, TRANSACTIONAL):
        return
    if category == ALL:
        raise ConfigurationError("no category can be named all: it means every message")
    if not _settings(app).unsubscribe_url:
        raise ConfigurationError(
            f"category {category!r} is not transactional, so its messages carry an unsubscribe link: set "
            "EFFECTS_UNSUBSCRIBE_URL to the address of effects_email.unsubscribe's endpoint"
        )
    check_signing(app)


def unsubscribe_headers(app: Effects, address: str, category: str | None) -> Headers:
    """`List-Unsubscribe` and `List-Unsubscribe-Post` of a message to this address; none for a transactional one.

    They differ at each call, so store them with the message. The relay's DKIM signature must cover both; OpenDKIM
    needs a setting for that.

    Raises:
        ConfigurationError: as `check_unsubscribe`.
    """
    check_unsubscribe(app, category)
    if category is None or category == TRANSACTIONAL:
        return ()
    token = write_token(app, address, category)
    ways = [f"<{_link(app, token)}>"]
    if mailbox := _settings(app).unsubscribe_mailto:
        ways.append(f"<mailto:{mailbox}?subject={quote(f'unsubscribe {token}')}>")
    return ("List-Unsubscribe", ", ".join(ways)), ("List-Unsubscribe-Post", "List-Unsubscribe=One-Click")


@arguments.checked(EmailInvalid, category=arguments.printable())
def unsubscribe_link(address: Recipient, category: str, *, effects: Effects | None = None) -> str:
    """The link of the headers, for the foot of a message.

    Args:
        address: the recipient's.
        effects: the Effects to use; default the process's.

    Raises:
        ConfigurationError: as `check_unsubscribe`, or the category is transactional.
    """
    app = app_of(effects)
    if category == TRANSACTIONAL:
        raise ConfigurationError("a transactional message has no unsubscribe link")
    check_unsubscribe(app, category)
    return _link(app, write_token(app, spec_of(address), category))


def unsubscribe(
    token: str, *, source: str = "link", session: AnySession | None = None, effects: Effects | None = None
) -> str:
    """Suppress the token's address for the token's category; the category. For ever, and idempotent.

    Raises:
        TokenInvalid: it is not ours, or was altered.
        ConfigurationError: EFFECTS_KEYS has no key named `digest`.
        StoreUnavailable: the database is unavailable (without `session`). Calling again is safe.
    """
    app = app_of(effects, session)
    parsed = read_token(app, token)
    row = new_row(
        app, parsed.address, "unsubscribe", digest=parsed.digest, category=parsed.category, until=None, source=source,
        actor="recipient", why=None,
    )  # fmt: skip
    with app.writing(session) as connection:
        write(app, connection, [row])
    return parsed.category


# -- the endpoint --------------------------------------------------------------------------------------------------


def asgi_app(*, effects: Effects | None = None, page: Page = pages.page) -> web_apps.AsgiApp:
    """An ASGI app that answers at every path: run it, or mount it. A mounted app's address ends with a slash: without
    it most frameworks redirect, which RFC 8058 forbids.

    Args:
        effects: default the process's, when the first request comes.
        page: `page(state, category)` gives the HTML in your own words; states: `ask`, `done`, `invalid`, `away`.

    Answers 200 to a good token, 404 to another, 405 to a method that is not GET, HEAD or POST, 413 to more than 16 KiB,
    503 while the database is unavailable.
    """
    return web_apps.asgi_app(_handler(effects, page), methods=_METHODS, body_bytes_max=BODY_BYTES_MAX)


def wsgi_app(*, effects: Effects | None = None, page: Page = pages.page) -> web_apps.WsgiApp:
    """The same as a WSGI app (PEP 3333)."""
    return web_apps.wsgi_app(_handler(effects, page), methods=_METHODS, body_bytes_max=BODY_BYTES_MAX)


def _handler(effects: Effects | None, page: Page) -> web_apps.Handle:
    def handle(request: web_apps.Request) -> web_apps.Answer:
        app = app_of(effects)
        token = parse_qs(request.query).get(PARAMETER, [""])[-1]
        try:
            if request.method == "POST":
                return _shown(200, page, "done", unsubscribe(token, effects=app))
            return _shown(200, page, "ask", read_token(app, token).category)
        except TokenInvalid:
            return _shown(404, page, "invalid", "")
        except StoreUnavailable:
            return _shown(503, page, "away", "", {"retry-after": str(_RETRY_SECONDS)})

    return handle


def _shown(
    status: int, page: Page, state: pages.State, category: str, more: dict[str, str] | None = None
) -> web_apps.Answer:
    return web_apps.Answer(status, page(state, category).encode(), {**pages.HEADERS, **(more or {})})


def _settings(app: Effects) -> EmailSettings:
    settings: EmailSettings = app.packages["email"]
    return settings


def _link(app: Effects, token: str) -> str:
    url = _settings(app).unsubscribe_url
    return f"{url}{'&' if urlsplit(url).query else '?'}{urlencode({PARAMETER: token})}"
