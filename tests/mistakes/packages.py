"""Mistakes with e-mail, webhooks and reports."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

import msgspec
from sqlalchemy import literal, select

from effects import Effects
from effects.worker import Worker
from effects_email import NewEmail, send_templated_email, send_templated_emails
from effects_reports import Notify, request_report
from effects_reports import report as declare_report
from effects_webhooks import WebhookEvent, add_endpoint, deliver_webhook
from tests.mistakes.shop import KEYS, Mistake, Shop

SENDER = "Shop <hello@shop.example>"


def mailing(shop: Shop, *, body: str = "Hello {{ name }}\n", **options: Any) -> Effects:
    shop.write("emails/hello/subject.txt", "Hello")
    shop.write("emails/hello/body.txt", body)
    settings = {"templates": shop.folder / "emails", "email_from": SENDER, "smtp_url": f"maildir:{shop.folder}/mail"}
    return shop.app(keys=KEYS, **{**settings, **options})


def mail(
    name: str, cure: str, template: str = "hello", *, app: dict[str, Any] | None = None, **options: Any
) -> Mistake:
    def make(shop: Shop) -> object:
        call = {"to": "ann@example.com", "context": {"name": "Ann"}, **options}
        return send_templated_email(template, effects=mailing(shop, **(app or {})), **call)

    return Mistake(name, make, cure)


def without_sender(shop: Shop) -> object:
    app = mailing(shop, email_from=None)
    return send_templated_email("hello", to="ann@example.com", context={"name": "Ann"}, effects=app)


def without_templates(shop: Shop) -> object:
    app = shop.app(email_from=SENDER)
    return send_templated_email("hello", to="ann@example.com", context={}, effects=app)


def unset_transport(shop: Shop) -> object:
    app = mailing(shop)
    return send_templated_email("hello", to="ann@example.com", context={"name": "Ann"}, transport="bulk", effects=app)


def forgotten_server(shop: Shop) -> object:
    app = mailing(shop, smtp_url=None)
    send_templated_email("hello", to="ann@example.com", context={"name": "Ann"}, key="k", effects=app)
    return shop.why(app, "k")


def wrong_scheme(shop: Shop) -> object:
    return Worker(mailing(shop, smtp_url="imap://mail.example")).drain()


def many_mails(shop: Shop) -> object:
    mails = [NewEmail("hello", to=to, context={"name": "x"}, key=to) for to in ("ann@example.com", "bob.example")]
    return send_templated_emails(mails, effects=mailing(shop))


def closed_port(shop: Shop) -> object:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    app = mailing(shop, smtp_url=f"smtp://127.0.0.1:{port}?tls=none")
    send_templated_email("hello", to="ann@example.com", context={"name": "Ann"}, key="k", effects=app)
    return shop.why(app, "ann@example.com").replace(str(port), "PORT")


def endpoint(name: str, cure: str, url: Any, events: Any = ("order.paid",), **options: Any) -> Mistake:
    keys = options.pop("keys", KEYS)
    return Mistake(name, lambda shop: add_endpoint(url, events, effects=shop.app(keys=keys), **options), cure)


def event(name: str, cure: str, /, *arguments: Any, **options: Any) -> Mistake:
    return Mistake(
        name, lambda shop: deliver_webhook(WebhookEvent(*arguments, **options), effects=shop.app(keys=KEYS)), cure
    )


def event_as_dict(shop: Shop) -> object:
    return deliver_webhook({"type": "order.paid", "data": {}}, effects=shop.app(keys=KEYS))  # type: ignore[arg-type]


def same_key_without_keys(shop: Shop) -> object:
    shop.app()
    event = WebhookEvent("order.paid", {"order": 7}, key="order:7:paid")
    deliver_webhook(event, effects=shop.bare_app(keys=KEYS))
    return deliver_webhook(event, effects=shop.bare_app(keys=""))


def notified_without_keys(shop: Shop) -> object:
    notify = Notify(job_type="email.compose", payload={"template": "ready", "to": "ann@example.com"})
    return request_report("orders", notify=notify, effects=shop.app(reports=[orders], keys=""))


@declare_report("orders", key="id")
def orders(params: Mapping[str, Any]) -> Any:
    return select(literal(params.get("first", 1)).label("id"))


class Day(msgspec.Struct):
    day: str


@declare_report("daily", key="id", params=Day)
def daily(params: Day) -> Any:
    return select(literal(1).label("id"), literal(params.day).label("day"))


def params_forgotten(shop: Shop) -> object:
    shop.app()
    shop.write("shop_reports.py", "from effects import Effects\nfrom tests.mistakes.packages import daily\n"
                                  "app = Effects(reports=[daily])\n")  # fmt: skip
    named = {"EFFECTS_DATABASE_URL": shop.url}
    return shop.effects("--app", "shop_reports:app", "reports", "explain", "daily", url=None, env=named)


def report(name: str, cure: str, /, *arguments: Any, **options: Any) -> Mistake:
    return Mistake(name, lambda shop: request_report(*arguments, effects=shop.app(), **options), cure)


def commanded(name: str, cure: str, *arguments: object) -> Mistake:
    def make(shop: Shop) -> object:
        shop.app()
        return shop.effects(*arguments, env={"EFFECTS_KEYS": KEYS})

    return Mistake(name, make, cure)


MISTAKES = [
    mail("misspells a template", "is it 'hello'?", template="helo"),
    mail("forgets a variable of a template", "'name' is missing in the context", context={}),
    mail("gives an address without @", "must have an @-sign", to="ann.example"),
    mail("gives a list as address", "give group=True", to=["ann@example.com", "bob@example.com"]),
    mail("gives a text as context", "give a dict", context="Ann"),
    mail("has a syntax error in a template", "hello/body.txt, line 1", app={"body": "Hello {{ name\n"}),
    mail("puts a line break into a header", "holds a line break", headers={"X-Order": "7\nBcc: bob@example.com"}),
    mail("attaches a file that is not there", "cannot be read", attachments=["invoice.pdf"]),
    mail("attaches bytes without a name", "bytes need a name", attachments=[b"%PDF-1.7"]),
    mail("writes to localhost", "give an address of a domain", to="ann@localhost"),
    Mistake("names a transport that is not set", unset_transport, "is not set"),
    Mistake("sets no mail server", forgotten_server, "EFFECTS_SMTP_URL"),
    Mistake("sets no sender", without_sender, "EFFECTS_EMAIL_FROM"),
    Mistake("sets no folder of templates", without_templates, "EFFECTS_EMAIL_TEMPLATES"),
    Mistake("has one bad address among many", many_mails, "emails[1] (key 'bob.example'): "),
    Mistake("gives a mail URL of another scheme", wrong_scheme, "smtp"),
    Mistake("has a mail server that is down", closed_port, "(127.0.0.1:PORT): Connection refused"),
    endpoint("gives an endpoint without https", "must begin with https://", "http://partner.example/in"),
    endpoint("gives an endpoint without a scheme", "must begin with https://", "partner"),
    endpoint("gives an endpoint in the own network", "EFFECTS_PRIVATE_NETWORKS", "https://10.0.0.7/in"),
    endpoint("gives a text as an endpoint's events", "give a list", "https://partner.example/in", "order.paid"),
    endpoint("adds an endpoint without keys", "effects keys generate", "https://partner.example/in", keys=""),
    Mistake("gives a dict in place of an event", event_as_dict, "give a WebhookEvent"),
    Mistake("gives a known key, without EFFECTS_KEYS now", same_key_without_keys, "EFFECTS_KEYS"),
    event("gives an event type with blanks", "give a dotted name such as", "order paid", {}),
    event("gives webhook data that is no JSON", "data.lines[1].price: ", "order.paid",
          {"lines": [{"price": 1}, {"price": object()}]}),
    event("gives webhook data of 300 KB", "let the partner fetch the rest", "order.paid", {"text": "x" * 300_000}),
    report("requests a report that is not there", "give yours to Effects(reports=[…])", "sales"),
    Mistake("notifies by mail without keys", notified_without_keys, "EFFECTS_KEYS is not set"),
    Mistake("explains a report without its params", params_forgotten, "give --param NAME=VALUE"),
    commanded("asks for an endpoint that is not there", "(see `effects webhooks endpoints list`)", "webhooks",
              "endpoints", "show", "ep_typo"),
    commanded("retries mail that is not there", "no job and no effect is named", "retry", "order:7"),
    commanded("asks for a report run that is not there", "(see `effects reports list`)", "reports", "show", "run_typo"),
    commanded("explains a status of 700", "100 to 599", "webhooks", "explain", "700"),
]  # fmt: skip
