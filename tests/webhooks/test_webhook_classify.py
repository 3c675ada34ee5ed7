"""Every error of the HTTP libraries has its outcome, and a stranger's text is made inert."""

from __future__ import annotations

import httpcore
import httpx
import pytest

from effects import Retry, Unknown
from effects_webhooks.classify import excerpt
from effects_webhooks.exchange import WebhookExchange
from effects_webhooks.transport import explain
from tests.webhooks.conftest import outcome_of


@pytest.mark.parametrize("error", [error for error in vars(httpcore).values()
                                   if isinstance(error, type) and issubclass(error, Exception)])  # fmt: skip
def test_every_error_of_httpcore_has_a_name_in_httpx(error: type[Exception]) -> None:
    if error is not httpcore.ConnectionNotAvailable:  # the pool's own signal, which it never lets out
        assert issubclass(getattr(httpx, error.__name__), httpx.TransportError)


def kinds(base: type[Exception]) -> list[type[Exception]]:
    return [base, *(deeper for kind in base.__subclasses__() for deeper in kinds(kind))]


@pytest.mark.parametrize("error", kinds(httpx.TransportError))
@pytest.mark.parametrize("wrote", [False, True])
def test_every_error_of_httpx_has_its_outcome(error: type[httpx.TransportError], wrote: bool) -> None:
    exchange = WebhookExchange(1)
    exchange.wrote = wrote
    explain(exchange, error("https://partner.test/?token=hunter2"))
    outcome = outcome_of(exchange)
    assert isinstance(outcome, Unknown if wrote else Retry)
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
def test_a_strangers_text_is_made_inert(body: bytes, shown: str) -> None:
    assert excerpt(body) == shown


def test_an_excerpt_is_bounded_after_escaping() -> None:
    assert len(excerpt(b"\0" * 100_000)) == 16 * 1024
