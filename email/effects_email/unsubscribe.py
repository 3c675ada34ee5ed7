"""One click and no more mail of that category (RFC 8058): the headers, the link, and the endpoint that they name.

    app.mount("/unsubscribe", asgi_app())   # EFFECTS_UNSUBSCRIBE_URL=https://shop.example/unsubscribe/

A POST unsubscribes at once: no cookie, no login, no redirect. A GET shows a page with a button that POSTs, because
scanners follow the links of a message and must not unsubscribe anybody. Someone who unsubscribes twice is
unsubscribed.

The token of a link says who and from what, signed, so that no row has to be kept for it:

    base64url( MAC (16 bytes) | version (1) | digest of the address (32) | length of category (2) | category | sealed )

The MAC is HMAC-SHA256 under the `digest` key of EFFECTS_KEYS, which rotation leaves alone: a link stays good as long as
that key does. The address itself is in it only sealed (and not at all where there is no key to seal with), because a
link ends up in the logs of whatever stands before the endpoint. Where its key is gone the digest still does.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import html
from collections.abc import Callable
from typing import Literal, TypeAlias
from urllib.parse import parse_qs, quote, urlencode, urlsplit

import msgspec

from effects import ConfigurationError, Effects, KeyUnavailable, StoreUnavailable
from effects.extend.arguments import arguments
from effects.extend.jobs import app_of
from effects.extend.receivers import web_apps
from effects.extend.sql import AnySession
from effects_email.errors import EmailInvalid, TokenInvalid
from effects_email.message.address import Recipient, address_digest, spec_of
from effects_email.settings import EmailSettings
from effects_email.suppression import ALL, TRANSACTIONAL, new_row, write_suppressions

_VERSION = 1
_MAC_BYTES, _DIGEST_BYTES = 16, 32
_HEAD_BYTES = 1 + _DIGEST_BYTES + 2
_CHARS_MAX = 4000
_KEYED = "hmac:"
_CONTEXT = {"table": "email_unsubscribe", "row": "token", "field": "address"}
State: TypeAlias = Literal["ask", "done", "invalid", "away"]
HEADERS = {
    "content-type": "text/html; charset=utf-8",
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'",
    "referrer-policy": "no-referrer",  # the token stands in the address
    "x-content-type-options": "nosniff",
    "x-robots-tag": "noindex",
}
_TEXTS: dict[State, tuple[str, str]] = {
    "ask": ("Unsubscribe?", "You will get no more messages of the kind “{category}”."),
    "done": ("Unsubscribed", "You will get no more messages of the kind “{category}”."),
    "invalid": (
        "This link does not work",
        "It is not complete, or was altered. Try the one in the message once more.",
    ),
    "away": ("Not possible just now", "Please try again in a minute."),
}
_BUTTON = """
<form method="post"><input type="hidden" name="List-Unsubscribe" value="One-Click">
<button type="submit">Unsubscribe</button></form>"""
BODY_BYTES_MAX = 16 * 1024
PARAMETER = "token"
_RETRY_SECONDS = 60
_METHODS = ("GET", "HEAD", "POST")
Page: TypeAlias = Callable[[State, str], str]
Headers: TypeAlias = tuple[tuple[str, str], ...]


class Token(msgspec.Struct, frozen=True):
    """A token's contents. `address` is None if it was not sealed or its key is gone."""

    digest: str
    category: str
    address: str | None

    def __repr__(self) -> str:
        return f"Token(category={self.category!r})"


def check_signing(app: Effects) -> None:
    """Refuse where tokens could be forged.

    Raises:
        ConfigurationError: EFFECTS_KEYS has no key named `digest`.
    """
    if not app.keys.digests_are_keyed:
        raise ConfigurationError(
            "unsubscribe links are signed: EFFECTS_KEYS needs a key named digest (see `effects keys generate`)"
        )


def write_token(app: Effects, address: str, category: str) -> str:
    """A token: 70 to 600 characters of the URL-safe alphabet.

    Raises:
        ConfigurationError: as `check_signing`.
    """
    check_signing(app)
    digest_bytes = bytes.fromhex(address_digest(app, address).removeprefix(_KEYED))
    name = category.encode()
    sealed = app.keys.seal(address.encode(), **_CONTEXT) if app.keys.ids else b""
    body = bytes([_VERSION]) + digest_bytes + len(name).to_bytes(2, "big") + name + sealed
    return base64.urlsafe_b64encode(_mac(app, body) + body).decode().rstrip("=")


def read_token(app: Effects, token: str) -> Token:
    """Verify and decode a token.

    Raises:
        TokenInvalid: it is not, or was altered. No other error comes from what a stranger sent.
        ConfigurationError: as `check_signing`.
    """
    check_signing(app)
    whole = _decoded(token)
    mac, body = whole[:_MAC_BYTES], whole[_MAC_BYTES:]
    if not hmac.compare_digest(mac, _mac(app, body)) or len(body) < _HEAD_BYTES or body[0] != _VERSION:
        raise TokenInvalid
    end = _HEAD_BYTES + int.from_bytes(body[_HEAD_BYTES - 2 : _HEAD_BYTES], "big")
    digest_text = _KEYED + body[1 : 1 + _DIGEST_BYTES].hex()
    return Token(digest_text, body[_HEAD_BYTES:end].decode(), _opened(app, body[end:]))


def _decoded(token: str) -> bytes:
    if not token or len(token) > _CHARS_MAX or not token.isascii():
        raise TokenInvalid
    try:
        whole = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise TokenInvalid from None
    if base64.urlsafe_b64encode(whole).decode().rstrip("=") != token:  # another text for the same bytes
        raise TokenInvalid
    return whole


def _mac(app: Effects, body: bytes) -> bytes:
    signed = app.keys.digest("unsubscribe token\0" + base64.b64encode(body).decode())
    return bytes.fromhex(signed.removeprefix(_KEYED))[:_MAC_BYTES]


def _opened(app: Effects, sealed: bytes) -> str | None:
    if not sealed:
        return None
    try:
        return app.keys.open(sealed, **_CONTEXT).decode()
    except KeyUnavailable:
        return None


def page(state: State, category: str) -> str:
    """The HTML of one page; `category` is empty where it is not known."""
    title, words = _TEXTS[state]
    said = html.escape(words.format(category=category))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 30rem; margin: 4rem auto; padding: 0 1rem }}</style>
</head><body><h1>{title}</h1><p>{said}</p>{_BUTTON if state == "ask" else ""}
</body></html>
"""


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
        write_suppressions(app, connection, [row])
    return parsed.category


# -- the endpoint --------------------------------------------------------------------------------------------------


def asgi_app(*, effects: Effects | None = None, page: Page = page) -> web_apps.AsgiApp:
    """An ASGI app that answers at every path: run it, or mount it. A mounted app's address ends with a slash: without
    it most frameworks redirect, which RFC 8058 forbids.

    Args:
        effects: default the process's, when the first request comes.
        page: `page(state, category)` gives the HTML in your own words; states: `ask`, `done`, `invalid`, `away`.

    Answers 200 to a good token, 404 to another, 405 to a method that is not GET, HEAD or POST, 413 to more than 16 KiB,
    503 while the database is unavailable.
    """
    return web_apps.asgi_app(_handler(effects, page), methods=_METHODS, body_bytes_max=BODY_BYTES_MAX)


def wsgi_app(*, effects: Effects | None = None, page: Page = page) -> web_apps.WsgiApp:
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


def _shown(status: int, page: Page, state: State, category: str, more: dict[str, str] | None = None) -> web_apps.Answer:
    return web_apps.Answer(status, page(state, category).encode(), {**HEADERS, **(more or {})})


def _settings(app: Effects) -> EmailSettings:
    settings: EmailSettings = app.packages["email"]
    return settings


def _link(app: Effects, token: str) -> str:
    url = _settings(app).unsubscribe_url
    return f"{url}{'&' if urlsplit(url).query else '?'}{urlencode({PARAMETER: token})}"
