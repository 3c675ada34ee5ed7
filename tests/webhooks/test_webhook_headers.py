"""A partner's own headers: none that frames, routes, vouches for or signs a request, as a server reads the name."""

from __future__ import annotations

import itertools

import pytest

from effects_webhooks import EndpointInvalid
from effects_webhooks.headers import check_headers

# Kind and source → names. Each is tried in every spelling that some server folds to it.
DENIED = {
    "hop by hop: RFC 9110 7.6.1, RFC 9113 8.2.2": [
        "Connection", "Keep-Alive", "Proxy-Connection", "TE", "Trailer", "Upgrade", "HTTP2-Settings", "Via",
        "Max-Forwards", "Early-Data", "CDN-Loop",
    ],
    "framing: RFC 9112 6, RFC 9110 8 and 10.1.1": [
        "Transfer-Encoding", "Content-Length", "Content-Type", "Content-Encoding", "Content-Range", "Expect",
    ],
    "negotiation and conditions: RFC 9110 12 to 14": ["Accept-Encoding", "Range", "If-Match", "If-None-Match", "Date"],
    "a browser's: Fetch standard, forbidden request-headers": [
        "Cookie", "Cookie2", "Set-Cookie", "Origin", "Referer", "Sec-Fetch-Site", "DNT",
        "Access-Control-Request-Method",
    ],
    "the CGI proxy: CVE-2016-5385": ["Proxy", "Proxy-Authorization", "Proxy-Authenticate"],
    "client address: RFC 7239 and vendors": [
        "Forwarded", "X-Forwarded-For", "X-Forwarded", "X-Forward-For", "Forwarded-For", "X-Real-IP", "X-Client-IP",
        "Client-IP", "True-Client-IP", "CF-Connecting-IP", "CF-Connecting-IPv6", "Fastly-Client-IP", "Fly-Client-IP",
        "X-Cluster-Client-IP", "X-Originating-IP", "X-Remote-IP", "X-Remote-Addr", "X-ProxyUser-IP",
        "WL-Proxy-Client-IP", "X-Azure-ClientIP", "X-Appengine-User-IP", "X-Envoy-External-Address",
    ],
    "host, URL and method overrides: Symfony, IIS, Zend, Rack, Envoy": [
        "Host", "X-Host", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded-Prefix", "X-Forwarded-Server",
        "X-HTTP-Host-Override", "X-Original-URL", "X-Original-Host", "X-Rewrite-URL", "X-Override-URL",
        "X-Script-Name", "X-HTTP-Method", "X-HTTP-Method-Override", "X-Method-Override", "X-Envoy-Original-Path",
    ],
    "identity by a proxy: RFC 9440, Apache, oauth2-proxy, AWS ALB, Google IAP": [
        "Client-Cert", "Client-Cert-Chain", "X-SSL-Client-Verify", "SSL-Client-Cert", "X-Remote-User", "Remote-User",
        "X-Auth-Request-User", "X-Amzn-Oidc-Data", "X-Goog-Authenticated-User-Email", "X-WebAuth-User",
        "X-ARR-ClientCert",
    ],
    "metadata tokens: AWS, Google, Azure, Alibaba, Linode, OpenStack": [
        "X-aws-ec2-metadata-token", "X-aws-ec2-metadata-token-ttl-seconds", "Metadata-Flavor",
        "X-Google-Metadata-Request", "Metadata", "X-aliyun-ecs-metadata-token", "Metadata-Token", "X-Instance-ID",
        "X-Metadata-Provider",
    ],
    "signature: Standard Webhooks, RFC 9421, RFC 9530": [
        "Webhook-Id", "Webhook-Timestamp", "Webhook-Signature", "Svix-Id", "Signature", "Signature-Input", "Digest",
        "Content-Digest", "Repr-Digest",
    ],
    "ours": ["User-Agent"],
}  # fmt: skip
ALLOWED = ["Authorization", "X-API-Key", "X_Api_Key", "X-Team", "x-trace", "Accept", "X-Tenant", "Idempotency-Key",
           "Api_Token", "X-Webhook-Token", "X-Proxy", "Accept-Language"]  # fmt: skip


def spellings(name: str) -> set[str]:
    """Every case and mix of `-` and `_` worth trying."""
    first = name.replace("-", "_", 1)
    forms = (name, name.replace("-", "_"), first, "_".join(name.rsplit("-", 1)))
    return {cased for form in forms for cased in (form, form.lower(), form.upper(), form.swapcase())}


@pytest.mark.parametrize("kind", DENIED)
def test_no_spelling_of_a_denied_name_passes(kind: str) -> None:
    for name in DENIED[kind]:
        for spelling in spellings(name):
            with pytest.raises(EndpointInvalid, match="sets"):
                check_headers({spelling: "x"})


def test_what_partners_ask_for_passes() -> None:
    for name in ALLOWED:
        assert check_headers({name: "x"}) == {name.lower(): "x"}


@pytest.mark.parametrize("pair", [*itertools.combinations(["X-Api-Key", "x_api_key", "X-Api_Key"], 2)], ids=str)
def test_two_spellings_of_one_name_are_one_header(pair: tuple[str, str]) -> None:
    with pytest.raises(EndpointInvalid, match="twice"):
        check_headers(dict.fromkeys(pair, "x"))


@pytest.mark.parametrize("value", ["Bearer Oracle", "bearer oracle", "BEARER ORACLE", "Bearer   Oracle"])
def test_oracles_metadata_token_is_no_authorization(value: str) -> None:
    with pytest.raises(EndpointInvalid):
        check_headers({"Authorization": value})
