"""A partner's own headers: none that frames, routes, vouches for or signs a request, as a server reads the name."""

from __future__ import annotations

import itertools
import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from effects_webhooks import EndpointInvalid
from effects_webhooks.endpoint_values import DENIED_KINDS, OWN_CREDENTIALS, check_headers

# Kind and source → names. Each is tried in every spelling that some server folds to it.
DENIED = {
    "hop by hop: RFC 9110 7.6.1, RFC 9113 8.2.2": [
        "Connection", "Keep-Alive", "Proxy-Connection", "TE", "Trailer", "Upgrade", "HTTP2-Settings", "Via",
        "Max-Forwards", "Early-Data", "CDN-Loop", "Alt-Used", "Surrogate-Capability",
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
        "WL-Proxy-Client-IP", "X-Azure-ClientIP", "X-Appengine-User-IP", "X-Envoy-External-Address", "X-Envoy-Peer",
        "DO-Connecting-IP", "CF-IPCountry", "CF-Visitor", "CF-Ray", "Forwarded-Host", "X-Forwarded-Port",
        "X-Nf-Client-Ip",
        "CloudFront-Viewer-Address", "Incap-Client-IP", "X-Vercel-Forwarded-For", "X-Azure-FDID", "X-FD-HealthProbe",
    ],
    "host, URL and method overrides: Symfony, IIS, Zend, Rack, Envoy": [
        "Host", "X-Host", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded-Prefix", "X-Forwarded-Server",
        "X-HTTP-Host-Override", "X-Original-URL", "X-Original-Host", "X-Rewrite-URL", "X-Override-URL",
        "X-Script-Name", "X-HTTP-Method", "X-HTTP-Method-Override", "X-Method-Override", "X-Envoy-Original-Path",
        "X-Accel-Mapping", "X-Accel-Redirect", "X-Sendfile-Type", "X-Middleware-Subrequest", "X-Forwarded-Path",
        "Destination", "Translate",
    ],
    "TLS by a proxy: nginx, Rails, IIS": [
        "X-Scheme", "X-Url-Scheme", "Front-End-Https", "X-Forwarded-Ssl", "X-Forwarded-Scheme", "X-SSL", "HTTPS",
    ],
    "identity by a proxy: RFC 9440, Apache, oauth2-proxy, AWS ALB, Google IAP": [
        "Client-Cert", "Client-Cert-Chain", "X-SSL-Client-Verify", "SSL-Client-Cert", "X-Remote-User", "Remote-User",
        "X-Auth-Request-User", "X-Amzn-Oidc-Data", "X-Goog-Authenticated-User-Email", "X-WebAuth-User",
        "X-ARR-ClientCert", "X-MS-Client-Principal", "X-MS-Client-Principal-Id", "X-MS-Client-Principal-Name",
        "X-MS-Client-Principal-IdP", "X-MS-Token-AAD-Id-Token", "Remote-Groups", "Remote-Email", "Remote-Name",
        "Impersonate-User", "Impersonate-Group", "Impersonate-Uid", "Impersonate-Extra-Scopes", "X-Remote-Group",
        "X-Remote-Extra-Scopes", "X-WebAuth-Email", "X-Auth-Request-Email", "X-Auth-Request-Access-Token",
        "X-Authentik-Username", "X-Authentik-Groups", "X-Authentik-Jwt", "Tailscale-User-Login", "Tailscale-User-Name",
        "Cf-Access-Jwt-Assertion", "Cf-Access-Authenticated-User-Email", "X-Goog-Iap-Jwt-Assertion",
        "X-Forwarded-User", "X-Forwarded-Groups", "X-Forwarded-Access-Token", "X-Pomerium-Jwt-Assertion",
        "X-Consumer-Username", "X-Authenticated-Userid", "X-Userinfo", "OIDC-Claim-Sub", "Shib-Session-Id",
        "SM-User", "SM-UserDN", "IV-User", "Teleport-Jwt-Assertion", "Ngrok-Auth-User-Email",
    ],
    "secret stores: HashiCorp": [
        "X-Vault-Request", "X-Vault-Token", "X-Vault-Namespace", "X-Vault-Wrap-TTL", "X-Consul-Token", "X-Nomad-Token",
    ],
    "metadata tokens: AWS, Google, Azure, Alibaba, Linode, OpenStack": [
        "X-aws-ec2-metadata-token", "X-aws-ec2-metadata-token-ttl-seconds", "Metadata-Flavor",
        "X-Google-Metadata-Request", "Metadata", "X-aliyun-ecs-metadata-token", "Metadata-Token", "X-Instance-ID",
        "X-Metadata-Provider", "X-Identity-Header", "X-Aws-Parameters-Secrets-Token",
    ],
    "signature: Standard Webhooks, RFC 9421, RFC 9530": [
        "Webhook-Id", "Webhook-Timestamp", "Webhook-Signature", "Svix-Id", "Signature", "Signature-Input", "Digest",
        "Content-Digest", "Repr-Digest", "X-Amz-Date", "X-Amz-Security-Token", "X-Amz-Content-Sha256",
    ],
    "ours": ["User-Agent"],
}  # fmt: skip
ALLOWED = ["Authorization", "X-API-Key", "X_Api_Key", "X-Team", "x-trace", "Accept", "X-Tenant", "Idempotency-Key",
           "Api_Token", "X-Webhook-Token", "X-Proxy", "Accept-Language", "X-Client-Id", "X-Client-Secret",
           "X-Acme-Token",
           "X-Auth-Token", "X-Access-Token", "X-Functions-Key", "Ocp-Apim-Subscription-Key", "X-Gitlab-Token",
           "X-Hub-Signature-256", "X-Hasura-Admin-Secret", "X-Consumer-Key", "Ngrok-Skip-Browser-Warning",
           "X-Request-Id", "X-Source", "X-User", "X-Event-Date", "Cf-Access-Client-Id", "Cf-Access-Client-Secret",
           "X-Vercel-Protection-Bypass", "X-Goog-Api-Key", "Apikey", "Token", "Client-Id", "Remote-System"]  # fmt: skip


def spellings(name: str) -> set[str]:
    """Every case and mix of `-` and `_` worth trying."""
    first = name.replace("-", "_", 1)
    forms = (name, name.replace("-", "_"), first, "_".join(name.rsplit("-", 1)))
    return {cased for form in forms for cased in (form, form.lower(), form.upper(), form.swapcase())}


def refused(name: str) -> bool:
    try:
        check_headers({name: "x"})
    except EndpointInvalid as error:
        return "not yours to set" in str(error)
    return False


@pytest.mark.parametrize("kind", DENIED)
def test_no_spelling_of_a_denied_name_passes(kind: str) -> None:
    for name in DENIED[kind]:
        for spelling in spellings(name):
            assert refused(spelling), spelling


@pytest.mark.slow
@given(st.data())
def test_whatever_the_table_of_kinds_denies_is_refused_in_every_spelling(data: st.DataObject) -> None:
    """Its names, and whatever begins with one of its prefixes, with any mix of cases and of `-` and `_`."""
    kind = data.draw(st.sampled_from(DENIED_KINDS), label="kind")
    rest = st.text(string.ascii_lowercase + string.digits + "-", max_size=12)
    name = data.draw(
        st.one_of(
            st.sampled_from([*kind.names, "connection"]),
            *([st.builds(str.__add__, st.sampled_from(kind.prefixes), rest)] if kind.prefixes else []),
            *(st.builds(lambda before, after, word=word: f"x{before}{word}{after}", rest, rest) for word in kind.words),
        ).filter(lambda name: name not in OWN_CREDENTIALS)
    )
    cased = [data.draw(st.sampled_from([letter.upper(), letter.lower()])) for letter in name]
    assert refused("".join(data.draw(st.sampled_from("-_")) if letter == "-" else letter for letter in cased))


def test_every_kind_is_refused_with_its_own_reason() -> None:
    assert len({kind.reason for kind in DENIED_KINDS}) == len(DENIED_KINDS)
    for kind in DENIED_KINDS:
        name = kind.names[0]
        with pytest.raises(EndpointInvalid, match=re.escape(f"header {name}: not yours to set: {kind.reason}")):
            check_headers({name: "x"})


def test_no_kind_denies_what_another_already_does() -> None:
    """Each name and prefix of the table is there once: a doubled one hides which kind it is of."""
    for first, second in itertools.permutations(DENIED_KINDS, 2):
        assert [name for name in (*first.names, *first.prefixes) if second.has(name)] == []
        assert [name for name in first.names if name.startswith(first.prefixes)] == []


def test_headers_that_receivers_ask_for_are_allowed() -> None:
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
