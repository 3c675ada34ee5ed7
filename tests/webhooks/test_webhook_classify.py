"""Every error of the HTTP libraries has its outcome, and third-party text is made inert."""

from __future__ import annotations

import httpcore
import pytest

from effects import Refused, Retry, Unknown
from effects.kit.http.messages import WIRE_ERRORS, record_fault
from effects_webhooks.classify import excerpt
from effects_webhooks.transport.exchange import WebhookExchange
from tests.webhooks.conftest import outcome_of


def kinds(base: type[Exception]) -> list[type[Exception]]:
    return [base, *(deeper for kind in base.__subclasses__() for deeper in kinds(kind))]


@pytest.mark.parametrize("error", [deeper for base in WIRE_ERRORS for deeper in kinds(base)])
@pytest.mark.parametrize("wrote", [False, True])
def test_every_error_of_the_wire_has_its_outcome(error: type[Exception], wrote: bool) -> None:
    exchange = WebhookExchange(1)
    exchange.wrote = wrote
    record_fault(exchange, error("https://partner.test/?token=hunter2"))
    outcome = outcome_of(exchange)
    refused = error is httpcore.LocalProtocolError  # no request can be made of it
    assert isinstance(outcome, Unknown if wrote else Refused if refused else Retry)
    assert "hunter2" not in repr(outcome)


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b"plain\nlines", "plain\nlines"),
        ("grün".encode(), "grün"),
        (b"\xff\xfe", "\\xff\\xfe"),
        (b"\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\u202egnp.exe".encode(), "\\u202egnp.exe"),
        ("\u2028\x85".encode(), "\\u2028\\x85"),
        (b"\0", "\\x00"),
        (b"\r\n", "\\r\n"),
    ],
)
def test_third_party_text_is_made_inert(body: bytes, shown: str) -> None:
    assert excerpt(body) == shown


def test_an_excerpt_is_bounded_after_escaping() -> None:
    assert len(excerpt(b"\0" * 100_000)) == 16 * 1024
