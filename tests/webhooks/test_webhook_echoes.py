"""Partners that answer with what they got: what was secret in the request is in no answer that is stored, nor shown.

The peer encodes; what it may find in a request is written here, as is every encoding: none is the product's own.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Callable, Iterator
from html import unescape
from urllib.parse import quote, quote_plus

import pytest

from effects import Effects
from effects.web import Person, dashboard
from effects.web.application import build_routes
from effects.web.pages import installed_pages
from effects_webhooks import (
    WebhookEvent,
    add_endpoint,
    change_endpoint,
    deliver_webhook,
    disable_endpoint,
    ensure_endpoint,
    get_endpoint,
    list_endpoints,
)
from effects_webhooks.echoes import shortened, striking
from tests.peers.http import Answer, Receiver, Request
from tests.support.commands import ACTING, READING, command
from tests.support.log_lines import log_lines
from tests.web.browsing import Visitor
from tests.webhooks.conftest import Rows, drain

KEY = bytes(range(200, 232))
SECRET = f"whsec_{base64.b64encode(KEY).decode()}"
PASSWORD = 'cor+rect/hor=se&"st\\a<p>le'
BASIC = base64.b64encode(f"shop:{PASSWORD}".encode()).decode()
HEADERS = {"authorization": f"Basic {BASIC}", "x-api-key": "Token sk_live_51Habc/DEF+ghi==", "x-shop": "a 'shop' & co"}
PATH = "T0123ABCD/B0456EFGH/q9Zk%2Bz~Y-x_W8v7u6t5s4r3"
QUERY = "token=9f8e7d6c5b4a%2F3210&sig=AbCdEf123456"
VALUES = {
    "Basic": BASIC, "password": PASSWORD, "user and password": f"shop:{PASSWORD}", "header": HEADERS["x-api-key"],
    "token of a header": "sk_live_51Habc/DEF+ghi==", "header of words": HEADERS["x-shop"], "path": PATH,
    "step": "q9Zk%2Bz~Y-x_W8v7u6t5s4r3", "decoded step": "q9Zk+z~Y-x_W8v7u6t5s4r3", "query": QUERY,
    "value of the query": "9f8e7d6c5b4a%2F3210", "decoded value": "9f8e7d6c5b4a/3210", "last value": "AbCdEf123456",
    "secret": base64.b64encode(KEY).decode(), "signature": base64.b64encode(bytes(range(100, 132))).decode(),
}  # fmt: skip


def in_base64(before: str, behind: str) -> Callable[[str], str]:
    return lambda text: base64.b64encode(f"{before}{text}{behind}".encode()).decode()


def in_dotnet(text: str) -> str:
    return "".join(f"\\u{ord(each):04X}" if each in "<>&'+\"`" else each for each in text.replace("\\", "\\\\"))


ENCODINGS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "upper case": str.upper,
    "JSON": lambda text: json.dumps(text)[1:-1],
    "PHP's JSON": lambda text: json.dumps(text)[1:-1].replace("/", "\\/"),
    "Go's JSON": lambda text: re.sub("[<>&]", lambda each: f"\\u{ord(each[0]):04x}", json.dumps(text)[1:-1]),
    ".NET's JSON": in_dotnet,
    "JSON in JSON": lambda text: json.dumps(json.dumps(text))[3:-3],
    "HTML": html.escape,
    "HTML with decimal quotes": lambda text: html.escape(text).replace("&#x27;", "&#39;"),
    "HTML with slashes": lambda text: html.escape(text).replace("/", "&#x2F;"),
    "HTML without quotes": lambda text: html.escape(text, quote=False),
    "percent": lambda text: quote(text, safe=""),
    "percent in lower case": lambda text: quote(text, safe="").lower(),
    "percent but slashes": quote,
    "encodeURIComponent": lambda text: quote(text, safe="!'()*"),
    "form": quote_plus,
    "percent twice": lambda text: quote(quote(text, safe=""), safe=""),
    "percent in JSON": lambda text: json.dumps(quote(text, safe=""))[1:-1],
    "hexadecimal": lambda text: text.encode().hex(),
    "HEXADECIMAL": lambda text: text.encode().hex().upper(),
    "base64": in_base64("", ""),
    "base64 behind one": in_base64("x", "yz"),
    "base64 behind two": in_base64("ab", "c"),
    "base64 behind three": in_base64("abc", ""),
    "base64 of URLs": lambda text: base64.urlsafe_b64encode(text.encode()).decode().rstrip("="),
    "base64 of URLs behind one": lambda text: base64.urlsafe_b64encode(f"x{text}".encode()).decode(),
}  # fmt: skip
URL_COLUMN = "effects_webhook_endpoints.url"
EDGE_CHARS = 8  # of base64: those that also hold bits of what is around, and those of what is around


def request_of(path: str = f"/services/{PATH}", query: str = QUERY) -> Callable[..., bytes]:
    return striking(f"https://x.example{path}?{query}", HEADERS, [KEY], f"v1,{VALUES['signature']}")


def left_over(answer: str) -> dict[str, str]:
    """What is still there of each form, by the name of its line."""
    lines = dict(line.split("\t") for line in answer.splitlines())
    rest = {name: text.replace("[hidden]", "") for name, text in lines.items()}
    return {name: text for name, text in rest.items() if len(text) > EDGE_CHARS * ("base64" in name)}


def lines_of(values: dict[str, str]) -> str:
    """A line for each value in each encoding."""
    pairs = [(f"{name}, {how}", encode(text)) for name, text in values.items() for how, encode in ENCODINGS.items()]
    return "\n".join(f"{name}\t{form}" for name, form in pairs)


def test_each_form_of_each_secret_is_struck() -> None:
    answer = lines_of(VALUES)
    assert len(answer.splitlines()) == len(VALUES) * len(ENCODINGS) > 350
    assert left_over(request_of()(answer.encode()).decode()) == {}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES.keys())
def test_a_beginning_of_a_secret_at_the_cut_is_struck(value: str) -> None:
    said = f"error: {value}"
    for chars in range(len(said) - len(value) + 8, len(said)):
        assert request_of()(said[:chars].encode(), is_cut=True) == b"error: [hidden]"


def test_what_a_partner_and_an_operator_match_by_stays() -> None:
    words = (
        b'{"error": "No hook at /services, msg_01M7ZH6CT86MAPDKC38QDHYJ0X of order.paid is unknown to x.example", '
        b'"status": 404, "scheme": "Basic", "shop": "a shop", "token": "none"}'
    )
    assert request_of()(words) == words
    hooks = striking("https://x.example/api/webhooks/incoming?v=2", {"x-env": "live"}, [KEY], "v1,short")
    words = b"POST /api: no incoming webhooks for this account (live, v=2)"
    assert hooks(words) == words


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("https://x.example", "https://x.example"),
        ("https://x.example/", "https://x.example/"),
        ("https://x.example/hooks", "https://x.example/hooks"),
        ("https://x.example:8443/hooks?a=b", "https://x.example:8443/hooks?…"),
        ("https://hooks.slack.com/services/T0/B0/abc", "https://hooks.slack.com/services/…"),
        ("https://discord.com/api/webhooks/1234/abc?wait=true", "https://discord.com/api/…?…"),
        (
            "https://x.webhook.office.com/webhookb2/11-22@33/IncomingWebhook/ab/cd",
            "https://x.webhook.office.com/webhookb2/…",
        ),
        ("https://webhook.site/0c7a2f6e-6f0b-4a55-9c55-2f3a1c0e9d11", "https://webhook.site/…"),
        ("https://x.example//a", "https://x.example/…"),
        ("https://x.example/a#token", "https://x.example/a"),
    ],
)
def test_a_url_is_shown_without_what_may_be_a_token(url: str, address: str) -> None:
    assert shortened(url) == address


# -- every outlet ------------------------------------------------------------------------------------------------


def echo(request: Request) -> Answer:
    """All that came, encoded in every way in the body, and as it is in headers."""
    got = {
        "Basic": request.headers["authorization"].partition(" ")[2], "header": request.headers["x-api-key"],
        "words": request.headers["x-shop"], "path": request.path.partition("/services/")[2].partition("?")[0],
        "query": request.path.partition("?")[2], "signature": request.headers["webhook-signature"].partition(",")[2],
    }  # fmt: skip
    headers = {f"x-echo-{number}": text for number, text in enumerate(got.values())}
    return Answer(200 if request.message_id == "msg_good" else 500, lines_of(got).encode(), headers)


def is_shown(text: str) -> list[str]:
    """The secrets that are in it."""
    return [name for name, value in VALUES.items() if value in unescape(text)]


@pytest.fixture
def echoed(shop: Effects) -> Iterator[Effects]:
    """A delivery that failed, one that was done and one that waits, by endpoints added in each way."""
    with Receiver(echo) as receiver:
        url = f"{receiver.url.removesuffix('/webhooks')}/services/{PATH}?{QUERY}"
        endpoint = add_endpoint(url, secret=SECRET, headers=HEADERS, effects=shop)
        ensured = ensure_endpoint("crm", url, ["other"], secret=SECRET, headers=HEADERS, effects=shop)
        change_endpoint(ensured.id, url=f"{url}&b=c", effects=shop)
        disable_endpoint(ensured.id, actor="ann", effects=shop)
        for name in ("good", "bad"):
            deliver_webhook(WebhookEvent("order.paid", {}, id=f"msg_{name}", key=name), effects=shop)
        drain(shop)
        assert [request.path for request in receiver.requests] == [f"/services/{PATH}?{QUERY}"] * 2
        assert is_shown(f"{endpoint!r} {ensured!r} {get_endpoint(endpoint.id, effects=shop)!r}") == []
        yield shop


def test_no_secret_of_a_request_is_stored_with_its_answer(echoed: Effects, rows: Rows) -> None:
    """But where it belongs: the URL in its column, header and secret sealed."""
    with echoed.store.read() as connection:
        for table in echoed.store.tables.values():
            for row in connection.execute(table.select()).mappings():
                kept = {
                    name: value
                    for name, value in row.items()
                    if (table.name, name) != ("effects_webhook_endpoints", "url")
                }
                assert is_shown(f"{kept!r} {json.dumps(kept, default=str)}") == [], table.name
    for row in rows("SELECT detail FROM effects_job_attempts"):
        detail = json.loads(row["detail"]) if isinstance(row["detail"], str) else row["detail"]
        assert detail["head"].count("[hidden]") == 6
        whole_lines = detail["response"].replace("\\t", "\t").splitlines()[:-1]
        assert len(whole_lines) > 3
        assert left_over("\n".join(whole_lines)) == {}


def test_no_outlet_shows_a_secret_of_a_request(echoed: Effects, capfd: pytest.CaptureFixture[str]) -> None:
    names = [*(name.split() for name in READING if name not in ACTING), ["metrics"]]
    endpoints = [endpoint.id for endpoint in list_endpoints(effects=echoed)]
    names += [["jobs", "show", number] for number in ("1", "2")]
    names += [["why", name] for name in (*endpoints, "good", "bad", "msg_bad", f"msg_bad:{endpoints[0]}")]
    names += [["webhooks", "endpoints", "show", name] for name in endpoints]
    names += [["webhooks", "endpoints", "ensure", "crm", f"https://x.example/services/{PATH}?{QUERY}"]]
    with log_lines() as log:
        outlets = {" ".join([*words, *json]): command(echoed, *words, *json) for words in names for json in JSON_OR_NOT}
        shown = {name: f"{answer.out}{answer.err}" for name, answer in outlets.items()} | pages_of(echoed)
    shown["log"], shown["standard output"] = "\n".join(log.lines), "".join(capfd.readouterr())
    assert {name: secrets for name, text in shown.items() if (secrets := is_shown(text))} == {}
    assert sum("/services/…" in unescape(text) for text in shown.values()) >= 10  # the URL has been there
    assert VALUES["path"] in command(echoed, "webhooks", "endpoints", "show", endpoints[0], "--show-url").out


JSON_OR_NOT: tuple[tuple[str, ...], ...] = ((), ("--json",))


def pages_of(app: Effects) -> dict[str, str]:
    """Every page without a parameter, and those that they lead to."""
    board = dashboard(guard=lambda request: Person("ann", role="admin", personal=True), effects=app)
    visitor, pages = Visitor(board), dict[str, str]()
    routes = [route for route in build_routes(None, installed_pages()) if "GET" in route.methods]
    for path in (route.pattern for route in routes if "{" not in route.pattern):
        pages[path] = visitor.get(path).text
    links = {link for text in pages.values() for link in re.findall(r'href="(/[^"]*)"', text)}
    links = {unescape(link).partition("#")[0] for link in links}
    for link in sorted(link for link in links if "/-/" not in link and link.partition("?")[0] not in pages):
        pages[link] = visitor.get(link).text
    board.close()
    assert any("endpoint" in path for path in pages)
    return pages
