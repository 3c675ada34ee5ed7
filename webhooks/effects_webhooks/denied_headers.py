"""The names of headers that no partner may set, by kind, each kind with its reason.

Names are in lower case and with `-`: CGI, WSGI, PHP and many proxies fold `_` to `-`, and names know no case. A kind
ends where names become a partner's own, such as `Authorization`, `X-Api-Key`, `X-Client-Id` or `X-Acme-Token`.
"""

from __future__ import annotations

from typing import NamedTuple


class DeniedKind(NamedTuple):
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
    DeniedKind(
        "it is meant for one connection or for caches on the way, not for the receiver",
        names=(
            "connection", "keep-alive", "te", "trailer", "upgrade", "upgrade-insecure-requests", "http2-settings",
            "max-forwards", "via", "x-via", "early-data", "cdn-loop", "alt-used",
        ),
        prefixes=("surrogate-",),
    ),
    # RFC 9112 §6; RFC 9110 §8, §10.1, §12.5.3, §13, §14
    DeniedKind(
        "it frames or describes the request, which the sender does",
        names=("transfer-encoding", "expect", "accept-encoding", "range", "date", "user-agent"),
        prefixes=("content-", "if-", "want-"),
    ),
    # Fetch standard, forbidden request-headers; RFC 6265; RFC 2965
    DeniedKind(
        "only browsers set it",
        names=("cookie", "cookie2", "set-cookie", "origin", "referer", "dnt"),
        prefixes=("sec-", "access-control-"),
    ),
    # CGI makes HTTP_PROXY of it (CVE-2016-5385); RFC 9110 §11.7
    DeniedKind("servers take it for the setting of a proxy", names=("proxy",), prefixes=("proxy-",)),
    # RFC 7239; nginx, Apache, Akamai, Cloudflare, Fastly, Fly.io, DigitalOcean, Imperva, Alibaba, Sucuri, Zscaler
    DeniedKind(
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
    DeniedKind(
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
    DeniedKind(
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
    DeniedKind(
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
    DeniedKind(
        "a cloud or a secret store asks for it before it hands out credentials",
        names=("x-instance-id", "x-identity-header", "x-nomad-token"),
        prefixes=("x-aws-", "x-vault-", "x-consul-"),
        words=("metadata",),
    ),
    # Standard Webhooks, RFC 9421, RFC 9530; AWS Signature Version 4
    DeniedKind(
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


def why_denied(folded: str) -> str | None:
    """Why no partner may set this header; None if it may. `folded`: the name in lower case and with `-`."""
    if folded in OWN_CREDENTIALS:
        return None
    return next((kind.reason for kind in DENIED_KINDS if kind.has(folded)), None)
