"""Goal: tags and metadata reach every provider in its own form, and none is refused at night for them."""

from __future__ import annotations

from typing import Any

import pytest

from effects import IdempotencyConflict
from effects_email import send_email
from effects_email.errors import EmailInvalid
from effects_email.message.source import metadata_of, tags_of
from effects_email.transport.url import open_transport
from tests.email.wire.conftest import Released
from tests.email.world.conftest import MailFactory
from tests.email.world.stand_ins import (
    MailgunBox,
    Postbox,
    PostmarkBox,
    ResendBox,
    SendGridBox,
    SesBox,
    outgoing_message,
    receiver,
    url_of,
)

TAGS = ("welcome", "spring_2026", "b-variant")
METADATA = (("order", "2026-0017"), ("tenant", "ann"))
SENDER = {"email_from": "Shop <shop@example.com>"}
PAIRS = {"tag": "welcome", "tag_2": "spring_2026", "tag_3": "b-variant", "order": "2026-0017", "tenant": "ann"}
BOXES: dict[str, type[Any]] = {
    "resend": ResendBox, "postmark": PostmarkBox, "sendgrid": SendGridBox, "mailgun": MailgunBox, "ses": SesBox,
}  # fmt: skip


def taken(scheme: str, tags: tuple[str, ...], metadata: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    """What a provider's stand-in took, ours left out."""
    box: Postbox = BOXES[scheme]()
    with receiver(box.serve) as peer:
        transport = open_transport("test", url_of(scheme, peer.port))
        try:
            sent = transport.send(outgoing_message(tags=tags, metadata=metadata), release=Released(), seconds=20)
        finally:
            transport.close()
    assert sent.verdict.kind == "accepted"
    [message] = box.messages
    return dict(message)


def without_ours(pairs: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in pairs.items() if not name.startswith("effects")}


def test_resend_and_ses_have_tags_of_names() -> None:
    tags = {tag["name"]: tag["value"] for tag in taken("resend", TAGS, METADATA)["tags"]}
    assert without_ours(tags) == PAIRS
    tags = {tag["Name"]: tag["Value"] for tag in taken("ses", TAGS, METADATA)["EmailTags"]}
    assert without_ours(tags) == PAIRS


def test_postmark_has_one_tag_and_metadata() -> None:
    message = taken("postmark", TAGS, METADATA)
    assert (message["Tag"], without_ours(message["Metadata"])) == (
        "welcome", {name: value for name, value in PAIRS.items() if name != "tag"},
    )  # fmt: skip


def test_sendgrid_has_categories_and_arguments() -> None:
    message = taken("sendgrid", TAGS, METADATA)
    assert (message["categories"], without_ours(message["custom_args"])) == (list(TAGS), dict(METADATA))


def test_mailgun_has_tags_and_variables() -> None:
    message = taken("mailgun", TAGS, METADATA)
    assert (message["o:tag"], message["v:order"], message["v:tenant"]) == (list(TAGS), "2026-0017", "ann")


@pytest.mark.parametrize("scheme", ["postmark", "sendgrid"])
def test_a_message_without_them_names_none(scheme: str) -> None:
    assert {"Tag", "categories"}.isdisjoint(taken(scheme, (), ()))


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"tags": "welcome"}, "tags is a str; give a list of texts"),
    ({"tags": ["a", "b", "c", "d"]}, "tags has 4; a message has at most 3"),
    ({"tags": ["welcome", "two words"]}, "tag 2 is no text of 1 to 64 letters"),
    ({"tags": [7]}, "tag 1 is no text"),
    ({"tags": ["a" * 65]}, "tag 1 is no text"),
    ({"tags": ["a\n"]}, "tag 1 is no text"),
    ({"metadata": [("order", "1")]}, "metadata is a list; give a dict of texts"),
    ({"metadata": {f"name{number}": "1" for number in range(6)}}, "metadata has 6 pairs; a message has at most 5"),
    ({"metadata": {"Order": "1"}}, "metadata, pair 1: the name is 1 to 19 small letters"),
    ({"metadata": {"effects_message": "1"}}, "metadata, pair 1: the name"),
    ({"metadata": {"tag_2": "1"}}, "metadata, pair 1: the name"),
    ({"metadata": {"order": 17}}, "metadata, order: the value is no text of 1 to 80"),
    ({"metadata": {"order": "ann@example.com"}}, "metadata, order: the value is no text"),
]


@pytest.mark.parametrize(("labels", "says"), WRONG, ids=[says for _, says in WRONG])
def test_what_a_provider_would_refuse_is_refused_at_the_call(labels: dict[str, Any], says: str) -> None:
    with pytest.raises(EmailInvalid, match=says):
        tags_of(labels.get("tags", ())), metadata_of(labels.get("metadata"))


def test_they_are_part_of_what_the_key_stands_for(mail_factory: MailFactory) -> None:
    shop = mail_factory(**SENDER)

    def send(**labels: Any) -> bool:
        words = {"to": "ann@example.com", "subject": "Hello", "text": "Hello", "key": "welcome:1"}
        return send_email(**words, **labels, effects=shop).existing

    assert send(tags=["welcome"], metadata={"b": "2", "a": "1"}) is False
    assert send(tags=["welcome", "welcome"], metadata={"a": "1", "b": "2"}) is True
    with pytest.raises(EmailInvalid, match="tag 1 is no text"):
        send(tags=["two words"])
    for labels in ({}, {"tags": ["welcome"]}, {"tags": ["other"], "metadata": {"a": "1", "b": "2"}}):
        with pytest.raises(IdempotencyConflict):
            send(**labels)
