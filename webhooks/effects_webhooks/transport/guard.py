"""Which URLs a webhook may have. Whoever adds an endpoint chooses where our request goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from effects.extend import Private, host_allowed, is_printable, is_web_port, lazy
from effects_webhooks.errors import EndpointInvalid

if TYPE_CHECKING:
    import httpx
else:
    httpx = lazy.module("httpx")

URL_CHARS_MAX = 2048


def check_url(url: str, *, allow_private: Private = False) -> str:
    """Refuse an unusable URL early, with the reason. No name is resolved.

    Without `allow_private`: https only, no loopback or private address, no port below 1024 but 80 and 443. A list
    of networks opens their addresses only: https and the ports stay as they are.

    Raises:
        EndpointInvalid: what is wrong with the URL; never quotes it (it may hold a token).
    """
    if not isinstance(url, str) or len(url) > URL_CHARS_MAX:
        raise EndpointInvalid(f"url must be a text of at most {URL_CHARS_MAX} characters")
    if not is_printable(url) or " " in url:
        raise EndpointInvalid("url holds a space or a control character")
    try:
        parsed = httpx.URL(url)
        port, host = parsed.port, parsed.host  # decodes `xn--` labels, which may be invalid
    except (httpx.InvalidURL, ValueError):
        raise EndpointInvalid("url is not a URL; give one such as https://example.com/webhooks") from None
    if parsed.scheme not in (("https", "http") if allow_private is True else ("https",)):
        raise EndpointInvalid(
            "url must begin with https:// (http only where EFFECTS_ALLOW_PRIVATE_ADDRESSES allows it)"
        )
    if parsed.userinfo:
        raise EndpointInvalid("url holds a user name or password; partners verify by signature instead")
    if not host:
        raise EndpointInvalid("url names no host")
    _check_port(port, allow_private is True)
    if not host_allowed(host, allow_private=allow_private):
        raise EndpointInvalid(
            "url names an address that is not allowed: loopback, private, link-local or reserved "
            "(EFFECTS_PRIVATE_NETWORKS allows private networks)"
        )
    return url


def _check_port(port: int | None, allow_private: bool) -> None:
    if port is not None and not 0 < port < 65536:
        raise EndpointInvalid("url has a port outside 1 to 65535")
    if not allow_private and not is_web_port(port):
        raise EndpointInvalid("url has a port of another service; give 443, 80, or one above 1023")
