"""The toolkit for the tests of apps, tried as an app would use it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated

import pytest

from effects import (
    Attempt,
    Done,
    Effects,
    Fixed,
    JobType,
    Refused,
    Retry,
    RetryPolicy,
    Sensitive,
    UnknownJobType,
    default,
    enqueue,
    enqueue_many,
    set_default,
)
from effects.kit.crashpoints import POINTS, declare, point
from effects.testing import Toolkit
from effects_webhooks import WebhookEvent, add_endpoint, deliver_webhook


@dataclass
class Invoice:
    number: int
    iban: Annotated[str, Sensitive] = ""


class SendInvoice(JobType[Invoice]):
    name = "invoice.send"
    payload = Invoice
    on_unknown = "hold"
    retry = RetryPolicy(backoff=Fixed(60), jitter=0.0)

    def __init__(self) -> None:
        self.sent: list[int] = []

    def perform(self, payload: Invoice, attempt: Attempt) -> Done | Retry:
        if attempt.number == 1 and payload.number < 0:
            return Retry("the printer is busy")
        attempt.release()
        point("invoice.printed")
        self.sent.append(payload.number)
        return Done()


@pytest.fixture(autouse=True)
def _own_point() -> object:
    declare({"invoice.printed": "printed, nothing recorded"})
    yield
    del POINTS["invoice.printed"]


def test_enqueue_and_drain(effects_toolkit: Toolkit) -> None:
    send = SendInvoice()
    effects_toolkit.add(send)
    assert default() is effects_toolkit.app
    enqueue("invoice.send", Invoice(7, "DE00 secret"), key="invoice:7")
    [enqueued] = effects_toolkit.assert_enqueued("invoice.send", number=7, iban="DE00 secret", key="invoice:7")
    assert (enqueued.status, enqueued.queue, enqueued.payload) == ("queued", "default", Invoice(7, "DE00 secret"))
    result = effects_toolkit.drain()
    assert (result.exit_code, send.sent) == (0, [7])
    assert effects_toolkit.enqueued("invoice.send")[0].status == "succeeded"


def test_what_is_not_enqueued_is_reported_without_secrets(effects_toolkit: Toolkit) -> None:
    effects_toolkit.add(SendInvoice())
    enqueue("invoice.send", Invoice(7, "DE00 secret"))
    with pytest.raises(
        AssertionError, match=r"at least one invoice.send with number=8, iban=\[hidden\]; there are:"
    ) as caught:
        effects_toolkit.assert_enqueued("invoice.send", number=8, iban="DE00 secret")
    assert "number=7" in str(caught.value)
    assert "secret" not in str(caught.value)
    with pytest.raises(AssertionError, match=r"invoice\.send with key 'k'; there are:"):
        effects_toolkit.assert_enqueued("invoice.send", key="k")
    with pytest.raises(AssertionError, match=r"2 invoice\.send"):
        effects_toolkit.assert_enqueued("invoice.send", times=2)
    assert effects_toolkit.assert_enqueued("invoice.send", times=0, number=8) == []
    with pytest.raises(UnknownJobType):
        effects_toolkit.assert_enqueued("invoice.sent")


def test_webhooks_are_captured_and_none_is_sent() -> None:
    with Toolkit(Effects()) as toolkit:
        add_endpoint("https://partner.example/hooks", ["order.*"])
        deliver_webhook(WebhookEvent("order.paid", {"order": 123}, key="order:123:paid"))
        assert toolkit.drain().counts == {"succeeded": 1}
        captured = toolkit.captured("webhook.deliver")
        assert len(captured) == 1
        assert captured.loaded[0].url == "https://partner.example/hooks"
        assert b'"order":123' in captured.loaded[0].body.replace(b" ", b"")


def test_a_type_of_the_apps_own_is_captured_when_asked(effects_toolkit: Toolkit) -> None:
    send = SendInvoice()
    effects_toolkit.add(send)
    captured = effects_toolkit.capture("invoice.send", Refused("not today"))
    enqueue("invoice.send", Invoice(7))
    assert effects_toolkit.drain().counts == {"dead": 1}
    assert (captured.payloads, send.sent) == ([Invoice(7)], [])
    effects_toolkit.add(send)  # carried out again
    with pytest.raises(KeyError):
        effects_toolkit.captured("invoice.send")


@pytest.mark.slow
def test_the_clock_moves_on_to_a_retry(effects_toolkit: Toolkit) -> None:
    send = SendInvoice()
    effects_toolkit.add(send)
    enqueue("invoice.send", Invoice(-1))
    effects_toolkit.drain()
    effects_toolkit.move_clock(59)
    effects_toolkit.drain()
    assert send.sent == []
    effects_toolkit.move_clock(2)
    effects_toolkit.drain()
    assert send.sent == [-1]


@pytest.mark.parametrize(
    ("at", "status", "sent"),
    [
        ("claim.committed", "succeeded", [7]),
        ("perform.before", "succeeded", [7]),
        ("perform.after", "dead", []),  # as the ledger has it; the child's list is gone
        ("invoice.printed", "dead", []),  # it may have been printed: held for a person
        ("settle.committed", "succeeded", []),  # by the child
    ],
)
@pytest.mark.slow
def test_a_crash_at_a_point_of_the_apps_own_or_of_ours(
    effects_toolkit: Toolkit, at: str, status: str, sent: list[int]
) -> None:
    send = SendInvoice()
    effects_toolkit.add(send)
    enqueue("invoice.send", Invoice(7), key="invoice:7")
    effects_toolkit.crash_at(at)
    result = effects_toolkit.drain(expect_dead=["invoice.send"] if status == "dead" else [])
    assert (effects_toolkit.enqueued("invoice.send")[0].status, send.sent) == (status, sent)
    assert (result.counts.get("dead", 0), result.exit_code) == ((1, 1) if status == "dead" else (0, 0))


def test_a_crash_moves_the_clock_by_no_more_than_a_lease(effects_toolkit: Toolkit) -> None:
    """What is due later in the hour, such as a schedule's slot, is not due by it."""
    send = SendInvoice()
    effects_toolkit.add(send)
    enqueue("invoice.send", Invoice(7))
    enqueue("invoice.send", Invoice(8), delay=600)
    effects_toolkit.crash_at("perform.before")
    effects_toolkit.drain()
    assert send.sent == [7]


def test_a_crash_point_that_is_not_passed_is_reported(effects_toolkit: Toolkit) -> None:
    effects_toolkit.add(SendInvoice())
    with pytest.raises(AssertionError, match=r"without passing invoice.printed"):
        effects_toolkit.crash_at("invoice.printed")
    with pytest.raises(ValueError, match=r"no crash point 'nowhere' is declared \(there are .*claim.committed, "):
        effects_toolkit.crash_at("nowhere")
    with pytest.raises(ValueError, match=r"'performed.after' is declared; is it 'perform.after'\? \(there are "):
        effects_toolkit.crash_at("performed.after")


def test_the_default_of_before_comes_back_and_the_environment_is_not_read(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EFFECTS_DATABASE_URL", "postgresql://nowhere.example/none")
    before = Effects(f"sqlite:///{tmp_path}/before.db")
    set_default(before)
    with Toolkit(Effects(threads=2)) as toolkit:
        assert toolkit.app.settings.threads == 2
        assert toolkit.app.settings.database_url.startswith("sqlite:///")
        assert default() is toolkit.app
    assert default() is before
    before.dispose()


def test_async_handlers_are_drained_and_their_errors_noted() -> None:
    app = Effects()
    performed: list[int] = []

    @app.job("invoice.ask", queue="asking", on_unknown="hold")
    async def ask(number: int) -> Done:
        await asyncio.sleep(0)
        if number < 0:
            raise ZeroDivisionError
        return Done(apply=lambda connection: performed.append(number))

    with Toolkit(app) as toolkit:
        enqueue_many([ask.job(number=1), ask.job(number=2)])
        assert toolkit.drain().counts == {"succeeded": 2}
        assert sorted(performed) == [1, 2]
        ask.enqueue(number=-1)
        with pytest.raises(ZeroDivisionError):
            toolkit.drain()
        captured = toolkit.capture("invoice.ask")
        ask.enqueue(number=3)
        toolkit.drain()
        assert [payload.number for payload in captured.payloads] == [3]
