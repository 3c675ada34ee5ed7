"""What an endpoint brings to each request, checked and sealed: its URL, its own headers, its secrets.

Whoever adds an endpoint chooses where our request goes and what it carries. What routes, frames or signs the request
is ours: header names that no partner may set stand here by kind, each with its reason, in lower case and with `-`: CGI,
WSGI, PHP and many proxies fold `_` to `-`, and names know no case. A kind ends where names become a partner's own, such
as `Authorization`, `X-Api-Key`, `X-Client-Id` or `X-Acme-Token`. Headers may hold a token, so that they are sealed like
a secret.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Row

from effects import Effects
from effects.extend.http import Private, host_allowed, is_web_port
from effects.extend.process import lazy
from effects.extend.secrets import SealedColumn
from effects.extend.text import is_printable
from effects_webhooks.errors import EndpointInvalid

with lazy.modules(__name__):
    import httpx


class _DeniedKind(NamedTuple):
    """One kind of header. `prefixes` and `words` deny names that begin with them, or hold them anywhere."""

    reason: str
    names: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    words: tuple[str, ...] = ()

    def has(self, folded: str) -> bool:
        """Whether the name, in lower case and with `-`, is of this kind."""
        return (
            folded in self.names or folded.startswith(self.prefixes) or any(word in folded for word in self.words)
        )  # fmt: skip


# Sources are in brackets: RFCs, and the servers, proxies and clouds that read or set the names.
DENIED_KINDS = (
    # RFC 9110 §7.6.1, RFC 9113 §8.2.2, RFC 8470, RFC 8586; RFC 7838 (Alt-Used); W3C Edge Architecture (Surrogate-…)
    _DeniedKind(
        "it is meant for one connection or for caches on the way, not for the receiver",
        names=(
            "connection", "keep-alive", "te", "trailer", "upgrade", "upgrade-insecure-requests", "http2-settings",
            "max-forwards", "via", "x-via", "early-data", "cdn-loop", "alt-used",
        ),
        prefixes=("surrogate-",),
    ),
    # RFC 9112 §6; RFC 9110 §8, §10.1, §12.5.3, §13, §14
    _DeniedKind(
        "it frames or describes the request, which the sender does",
        names=("transfer-encoding", "expect", "accept-encoding", "range", "date", "user-agent"),
        prefixes=("content-", "if-", "want-"),
    ),
    # Fetch standard, forbidden request-headers; RFC 6265; RFC 2965
    _DeniedKind(
        "only browsers set it",
        names=("cookie", "cookie2", "set-cookie", "origin", "referer", "dnt"),
        prefixes=("sec-", "access-control-"),
    ),
    # CGI makes HTTP_PROXY of it (CVE-2016-5385); RFC 9110 §11.7
    _DeniedKind("servers take it for the setting of a proxy", names=("proxy",), prefixes=("proxy-",)),
    # RFC 7239; nginx, Apache, Akamai, Cloudflare, Fastly, Fly.io, DigitalOcean, Imperva, Alibaba, Sucuri, Zscaler
    _DeniedKind(
        "it names the client's address, which proxies set",
        names=(
            "client-ip", "x-client-ip", "x-clientip", "clientip", "true-client-ip", "x-true-client-ip", "x-real-ip",
            "x-realip", "real-ip", "x-proxyuser-ip", "x-cluster-client-ip", "cluster-client-ip", "x-coming-from",
            "source-ip", "x-source-ip", "x-peer-address", "x-peer-ip", "do-connecting-ip", "x-connecting-ip",
            "incap-client-ip", "x-sucuri-clientip", "ali-cdn-real-ip", "cdn-src-ip", "cdn-real-ip", "x-cdn-src-ip",
            "x-nginx-proxy", "z-forwarded-for", "remote-addr", "remote-host", "remote-port", "x-remote-ip",
            "x-remote-addr", "client-address", "x-client-address", "x-client-host", "x-client-port", "x-bluecoat-via",
        ),
        prefixes=(
            "forwarded", "x-forward", "x-originating-", "wl-proxy-", "cf-", "fastly-", "fly-", "cloudfront-",
            "akamai-", "x-akamai-", "x-azure-", "x-fd-", "x-appengine-", "x-vercel-", "x-nf-", "x-envoy-",
            "x-client-geo",
        ),
    ),
    # Symfony, IIS, Zend, ASP.NET, Rack, Django, Laravel; nginx X-Accel, Apache X-Sendfile, Rack::Sendfile
    # (CVE-2025-61780), Next.js (CVE-2025-29927); WebDAV (RFC 4918), IIS `Translate: f`
    _DeniedKind(
        "it overrides the host, the URL, the method or the file that was asked for",
        names=(
            "host", "x-host", "x-http-host-override", "x-server-name", "x-server-port", "x-script-name",
            "script-name", "path-info", "x-path-info", "x-url", "x-override-url", "x-override-host", "x-method",
            "x-method-override", "method-override", "http-method", "http-method-override", "base-url", "x-base-url",
            "x-matched-path", "destination", "depth", "overwrite", "lock-token", "translate", "x-lighttpd-send-file",
        ),
        prefixes=("x-original-", "x-rewrite-", "x-http-method", "x-accel-", "x-sendfile", "x-middleware-", "x-invoke-"),
    ),
    # nginx, Rails, IIS, PHP, WebLogic; RFC 9440 (Client-Cert)
    _DeniedKind(
        "it vouches for TLS or a client certificate, which proxies do",
        names=(
            "x-scheme", "x-url-scheme", "front-end-https", "https", "x-https", "ssl", "x-ssl",
            "x-client-verify", "client-verify",
        ),
        prefixes=(
            "ssl-", "x-ssl-", "x-tls-", "tls-client-", "client-cert", "x-client-cert", "x-client-dn", "x-client-s-dn",
            "x-client-ssl", "x-arr-",
        ),
    ),
    # Apache, Authelia, Authentik, oauth2-proxy, Grafana, Istio, Linkerd, Kong, Kubernetes (front proxy, impersonation),
    # Azure App Service and Container Apps, AWS ALB, Google IAP, API Gateway and Endpoints, Tailscale Serve, Teleport,
    # Pomerium, Vouch, ngrok, Sandstorm, Replit, Shibboleth, mod_auth_openidc, mod_auth_mellon, SiteMinder, WebSEAL
    _DeniedKind(
        "it names the user or the rights of a request, for which a proxy vouches",
        names=(
            "x-webauth", "x-user-identity", "x-userinfo", "x-authenticated", "auth-user", "x-proxy-user",
            "iv-user", "iv-groups", "iv-creds", "iv-user-l", "x-anonymous-consumer", "x-endpoint-api-userinfo",
            "x-apigateway-api-userinfo", "teleport-jwt-assertion", "x-jwt-assertion", "x-consumer-id",
            "x-consumer-custom-id", "x-consumer-username", "x-consumer-groups", "x-credential-identifier",
            "x-credential-username", "oidc-access-token", "oidc-id-token",
        ),
        prefixes=(
            "remote-user", "remote-name", "remote-group", "remote-email", "remote-extra", "remote-uid",
            "x-remote-user", "x-remote-name", "x-remote-group", "x-remote-email", "x-remote-extra", "x-remote-uid",
            "impersonate-", "x-webauth-", "x-auth-request-", "x-authentik-", "x-authelia-", "x-authenticated-",
            "x-ms-client-principal", "x-ms-token-", "x-goog-", "x-google-", "x-amzn-", "tailscale-", "x-pomerium-",
            "x-vouch-", "x-istio-", "l5d-", "ngrok-auth-", "x-sandstorm-",
            "x-replit-", "shib-", "x-shib-", "oidc-claim-", "mellon-", "sm-user", "oam-remote-",
        ),
    ),
    # AWS IMDSv2, Google, Azure, Alibaba, Linode, OpenStack, Oracle: all but Azure's identity endpoint and DigitalOcean
    # have the word in the name. HashiCorp's agents refuse requests without X-Vault-Request.
    _DeniedKind(
        "a cloud or a secret store asks for it before it hands out credentials",
        names=("x-instance-id", "x-identity-header", "x-nomad-token"),
        prefixes=("x-aws-", "x-vault-", "x-consul-"),
        words=("metadata",),
    ),
    # Standard Webhooks, RFC 9421, RFC 9530; AWS Signature Version 4
    _DeniedKind(
        "it signs the request, which the sender does",
        names=("signature", "signature-input", "signature-agent", "digest", "repr-digest"),
        prefixes=("webhook-", "svix-", "x-amz-"),
    ),
)  # fmt: skip


# Credentials that a receiver's gateway checks itself, by names that begin like what it sets: Cloudflare Access service
# tokens, Vercel's protection bypass, Google's API keys.
OWN_CREDENTIALS = frozenset(
    {"cf-access-client-id", "cf-access-client-secret", "x-vercel-protection-bypass", "x-goog-api-key"}
)


def _why_denied(folded: str) -> str | None:
    """Why no partner may set this header; None if it may. `folded`: the name in lower case and with `-`."""
    if folded in OWN_CREDENTIALS:
        return None
    return next((kind.reason for kind in DENIED_KINDS if kind.has(folded)), None)


_HEADERS_MAX = 20
VALUE_CHARS_MAX = 1000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")  # narrower than RFC 9110's token, and every server takes it
# Oracle's metadata service asks for this one before it hands out credentials; the others' are in `denied_headers`.
_METADATA_VALUES = {("authorization", "bearer oracle")}


def check_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers with lower-case names, if a partner may set them.

    At most 20, of letters, digits, `-` and `_`, with values of at most 1,000 visible ASCII characters and spaces. Names
    are compared as servers read them: `X_Real_IP` is `x-real-ip`.

    Raises:
        EndpointInvalid: names the header; never quotes its value.
    """
    if len(headers) > _HEADERS_MAX:
        raise EndpointInvalid(f"give at most {_HEADERS_MAX} headers")
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
        if (refusal := _why_refused(folded, value)) is not None:
            raise EndpointInvalid(f"header {name}: not yours to set: {refusal}")
        checked[name.lower()] = value
    return checked


def _why_refused(folded: str, value: str) -> str | None:
    if (folded, " ".join(value.lower().split())) in _METADATA_VALUES:
        return "a cloud's metadata service asks for this value before it hands out credentials"
    return _why_denied(folded)


def _visible(value: str) -> bool:
    return value.isascii() and is_printable(value) and value == value.strip()


def _pack(headers: Mapping[str, str]) -> bytes:
    """What is sealed."""
    return msgspec.json.encode(headers)


def unpack_headers(packed: bytes) -> dict[str, str]:
    """What was packed."""
    return msgspec.json.decode(packed, type=dict[str, str])


_URL_CHARS_MAX = 2048


def check_url(url: str, *, allow_private: Private = False) -> str:
    """Refuse an unusable URL early, with the reason. No name is resolved.

    Without `allow_private`: https only, no loopback or private address, no port below 1024 but 80 and 443. A list
    of networks opens their addresses only: https and the ports stay as they are.

    Raises:
        EndpointInvalid: what is wrong with the URL; never quotes it (it may hold a token).
    """
    if not isinstance(url, str) or len(url) > _URL_CHARS_MAX:
        raise EndpointInvalid(f"url must be a text of at most {_URL_CHARS_MAX} characters")
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


def seal_secret(app: Effects, endpoint_id: str, secret_id: str, key: bytes) -> bytes:
    """A signing key as it is stored.

    Raises:
        KeyUnavailable: EFFECTS_KEYS is not set.
    """
    return app.keys.seal(key, **_context(endpoint_id, secret_id))


def open_secret(app: Effects, endpoint_id: str, secret_id: str, sealed: bytes) -> bytes:
    """The signing key of a stored secret.

    Raises:
        KeyUnavailable: its key is not in EFFECTS_KEYS.
        SealInvalid: the row was altered.
    """
    return app.keys.open(sealed, **_context(endpoint_id, secret_id))


def open_headers(app: Effects, endpoint_id: str, sealed: bytes) -> bytes:
    """The partner's own headers, packed.

    Raises:
        KeyUnavailable, SealInvalid: as `open_secret`.
    """
    return app.keys.open(bytes(sealed), **_headers_context(endpoint_id))


def seal_headers(app: Effects, endpoint_id: str, headers: Mapping[str, str]) -> bytes:
    """A partner's own headers as they are stored.

    Raises:
        EndpointInvalid: one cannot be. KeyUnavailable: as `seal_secret`.
    """
    packed = _pack(check_headers(headers))
    return app.keys.seal(packed, **_headers_context(endpoint_id))


def has_other_headers(app: Effects, endpoint_id: str, sealed: bytes | None, headers: Mapping[str, str]) -> bool:
    """Whether these headers are other ones than those stored.

    Raises:
        EndpointInvalid: one cannot be. KeyUnavailable, SealInvalid: as `open_secret`.
    """
    stored = open_headers(app, endpoint_id, sealed) if sealed is not None else None
    return stored != (_pack(check_headers(headers)) if headers else None)


def _headers_context(endpoint_id: str) -> dict[str, str]:
    return {"table": "webhook_endpoints", "row": endpoint_id, "field": "headers"}


def sealed_columns() -> list[SealedColumn]:
    """The entry point `effects.sealed`: what `effects keys` counts and rotates."""
    return [
        SealedColumn(
            table="webhook_endpoints",
            column="headers",
            id_column="id",
            columns=(),
            context=lambda row: _headers_context(row.id),
        ),
        SealedColumn(
            table="webhook_secrets",
            column="sealed",
            id_column="id",
            columns=("endpoint_id",),
            context=_context_of,
        ),
    ]


def _context_of(row: Row[Any]) -> dict[str, str]:
    return _context(row.endpoint_id, row.id)


def _context(endpoint_id: str, secret_id: str) -> dict[str, str]:
    # Both ids: a secret's row that is pointed at another endpoint must not open either.
    return {"table": "webhook_secrets", "row": f"{endpoint_id}/{secret_id}", "field": "sealed"}
