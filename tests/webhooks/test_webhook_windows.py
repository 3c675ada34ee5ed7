"""How many requests at a time an endpoint is found to bear."""

from __future__ import annotations

import pytest

from effects import Effects
from effects_webhooks.transport.exchange import START, WebhookExchange, Windows, WindowUse
from effects_webhooks.wiring import WebhookDelivery
from effects_webhooks.writing import endpoint_of, limit_key


def ended(status: int | None = None, failure: str | None = None) -> WebhookExchange:
    exchange = WebhookExchange(1.0)
    exchange.status = status
    exchange.failure = failure
    return exchange


OK, BUSY = ended(204), ended(503)


def rounds(windows: Windows, exchange: WebhookExchange, count: int, *, at_a_time: int | None = None) -> None:
    """So many rounds of requests that all end so; default as many at a time as the window is wide."""
    for _ in range(count):
        uses = [windows.use("ep") for _ in range(at_a_time or windows.size("ep"))]
        for use in uses:
            finish(use, exchange)


def finish(use: WindowUse, exchange: WebhookExchange) -> None:
    with use:
        use.ended(exchange)


def test_a_window_starts_at_four() -> None:
    assert Windows().size("ep") == START == 4


def test_each_round_of_successes_adds_one() -> None:
    windows = Windows()
    rounds(windows, OK, 3)
    assert windows.size("ep") == 7


def test_an_unused_window_does_not_grow() -> None:
    windows = Windows()
    rounds(windows, OK, 30, at_a_time=3)
    assert windows.size("ep") == 4


@pytest.mark.parametrize(
    "exchange",
    [BUSY, ended(429), ended(failure="connect_timeout"), ended(failure="tls_timeout"), ended(failure="answer_timeout")],
)
def test_overload_halves_the_window(exchange: WebhookExchange) -> None:
    windows = Windows()
    rounds(windows, OK, 6)
    finish(windows.use("ep"), exchange)
    assert windows.size("ep") == 5


def test_requests_from_before_the_halving_count_once() -> None:
    windows = Windows()
    rounds(windows, OK, 6)
    uses = [windows.use("ep") for _ in range(10)]
    for use in uses[:6]:
        finish(use, BUSY)
    for use in uses[6:]:
        finish(use, OK)
    assert windows.size("ep") == 5
    finish(windows.use("ep"), BUSY)
    assert windows.size("ep") == 2


def test_the_smallest_window_is_one_and_grows_again() -> None:
    windows = Windows()
    for _ in range(9):
        finish(windows.use("ep"), BUSY)
    assert windows.size("ep") == 1
    rounds(windows, OK, 3)
    assert windows.size("ep") == 4


@pytest.mark.parametrize(
    "exchange", [ended(500), ended(404), ended(failure="connect_failed"), ended(failure="our_network")]
)
def test_other_answers_leave_the_window(exchange: WebhookExchange) -> None:
    windows = Windows()
    rounds(windows, exchange, 5)
    assert windows.size("ep") == 4


def test_a_request_that_is_cancelled_leaves_the_window() -> None:
    windows = Windows()
    for _ in range(4):
        with windows.use("ep"):
            pass
    rounds(windows, OK, 9, at_a_time=3)
    assert windows.size("ep") == 4  # no more than three at a time since


def test_each_endpoint_has_its_own_and_those_unused_for_longest_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("effects_webhooks.transport.exchange.ENDPOINTS_MAX", 2)
    windows = Windows()
    for name in ("a", "b"):
        finish(windows.use(name), BUSY)
    assert [windows.size(name) for name in ("a", "b", "c")] == [2, 2, 4]
    finish(windows.use("a"), OK)
    finish(windows.use("c"), BUSY)
    assert [windows.size(name) for name in ("a", "b", "c")] == [2, 4, 2]


def test_the_job_type_bounds_its_endpoints_alone(shop: Effects) -> None:
    delivery = WebhookDelivery(shop)
    assert delivery.max_in_flight(limit_key("ep_1")) == 4
    assert delivery.max_in_flight("another") is None
    assert endpoint_of(limit_key("ep_1")) == "ep_1"
