"""Partners' own headers: rules and storage.

They may hold a token, so that they are sealed like a secret. What routes, frames or signs the request is ours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from effects.extend import is_printable
from effects_webhooks.errors import EndpointInvalid

HEADERS_MAX = 20
VALUE_CHARS_MAX = 1000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")  # narrower than RFC 9110's token, and every server takes it
# By kind, in lower case and with `-`: CGI, WSGI, PHP and many proxies fold `_` to `-`, and names know no case.
_DENIED = frozenset(
    {
        # hop by hop (RFC 9110 §7.6.1; RFC 9113 §8.2.2; RFC 8470): meant for one connection, not for the receiver
        "connection", "keep-alive", "te", "trailer", "upgrade", "http2-settings", "max-forwards", "via", "early-data",
        "cdn-loop",
        # framing and what the client negotiates (RFC 9112 §6; RFC 9110 §8, §10.1, §12.5.3, §13, §14)
        "transfer-encoding", "expect", "accept-encoding", "range", "date", "user-agent",
        # a browser's (Fetch standard, forbidden request-headers; RFC 6265)
        "cookie", "cookie2", "set-cookie", "origin", "referer", "dnt",
        # the proxy of the receiver's own requests: CGI makes HTTP_PROXY of it (CVE-2016-5385)
        "proxy",
        # whose address the client has (RFC 7239; nginx, Apache, Akamai, Cloudflare, Fastly, Fly.io)
        "forwarded", "forwarded-for", "x-real-ip", "true-client-ip", "remote-addr", "remote-host", "x-remote-ip",
        "x-remote-addr", "x-originating-ip", "x-proxyuser-ip", "x-cluster-client-ip", "fly-client-ip",
        "fastly-client-ip", "x-coming-from", "x-envoy-external-address", "x-envoy-internal", "source-ip",
        "x-source-ip", "x-peer-address",
        # which host, URL or method is asked for (Symfony, IIS, Zend, ASP.NET, Rack, Django, Envoy)
        "host", "x-host", "x-http-host-override", "x-server-name", "x-script-name", "script-name", "path-info",
        "x-url", "x-override-url", "x-method", "x-method-override", "x-envoy-original-path", "x-envoy-original-host",
        "method-override", "http-method", "http-method-override", "base-url", "destination", "x-accel-redirect",
        "x-sendfile",
        # who a proxy says is asking (RFC 9440; Apache, Grafana, Istio)
        "remote-user", "x-remote-user", "x-webauth-user", "x-authenticated-user", "x-user-identity",
        # what signs the request (RFC 9421; RFC 9530)
        "signature", "signature-input", "signature-agent", "digest", "repr-digest",
    }
)  # fmt: skip
_DENIED_PREFIXES = (
    "content-", "proxy-", "sec-", "access-control-", "if-", "want-",
    "x-forward", "x-original-", "x-rewrite-", "x-http-method", "client-", "x-client-", "ssl-", "x-ssl-", "x-arr-",
    "cf-", "x-azure-", "x-appengine-", "x-goog-", "x-amzn-", "wl-proxy-", "x-auth-request-", "x-instance-id",
    "webhook-", "svix-",
)  # fmt: skip
# What clouds ask for before they hand out credentials (AWS IMDSv2, Google, Azure, Alibaba, Linode, OpenStack all have
# the word in the name; Oracle's IMDSv2 asks for `Authorization: Bearer Oracle`).
_METADATA = "metadata"
_METADATA_VALUES = {("authorization", "bearer oracle")}


def check_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers with lower-case names, if a partner may set them.

    At most 20, of letters, digits, `-` and `_`, with values of at most 1,000 visible ASCII characters and spaces. Names
    are compared as servers read them: `X_Real_IP` is `x-real-ip`.

    Raises:
        EndpointInvalid: names the header; never quotes its value.
    """
    if len(headers) > HEADERS_MAX:
        raise EndpointInvalid(f"give at most {HEADERS_MAX} headers")
    checked: dict[str, str] = {}
    folded_names: set[str] = set()
    for name, value in headers.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise EndpointInvalid(f"header name {name!r}: give at most 64 letters, digits, - and _")
        folded = name.lower().replace("_", "-")
        if folded in folded_names:
            raise EndpointInvalid(f"header {name}: given twice; servers take _ for -")
        folded_names.add(folded)
        if not isinstance(value, str) or not 0 < len(value) <= VALUE_CHARS_MAX or not _visible(value):
            raise EndpointInvalid(f"header {name}: give 1 to {VALUE_CHARS_MAX} visible ASCII characters as its value")
        if _is_denied(folded, value):
            raise EndpointInvalid(f"header {name}: it is one that the sender, or a proxy or cloud, sets")
        checked[name.lower()] = value
    return checked


def _is_denied(folded: str, value: str) -> bool:
    return (
        folded in _DENIED
        or folded.startswith(_DENIED_PREFIXES)
        or _METADATA in folded
        or (folded, " ".join(value.lower().split())) in _METADATA_VALUES
    )


def _visible(value: str) -> bool:
    return value.isascii() and is_printable(value) and value == value.strip()


def pack(headers: Mapping[str, str]) -> bytes:
    """What is sealed."""
    return msgspec.json.encode(headers)


def unpack(packed: bytes) -> dict[str, str]:
    """What was packed."""
    return msgspec.json.decode(packed, type=dict[str, str])
