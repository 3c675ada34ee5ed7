"""The inbox of `effects dev`: every request as a file, verified as a partner would, and the pages that show them.

What an endpoint answers is chosen on its page: so retries, pauses and its end are seen, once the clock is moved.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from effects import Effects
from effects.extend.secrets import SignatureInvalid, signing
from effects.extend.text import moment
from effects.web import PAGE_ROWS, NavigationEntry, PageAnswer, PageRoute, Pages, Visit, choice_of, keep_file
from effects_webhooks.errors import EndpointNotFound, EventNotFound
from effects_webhooks.jobs import DeliverPayload, LoadedDelivery, WebhookDelivery
from effects_webhooks.settings import state_of
from effects_webhooks.transport.exchange import WebhookExchange

Chosen: TypeAlias = Literal["200", "410", "429", "500", "503", "silence"]
CHOICES: tuple[Chosen, ...] = ("200", "410", "429", "500", "503", "silence")
WORDS = {"200": "takes everything", "410": "is gone", "429": "has enough for now", "500": "fails",
         "503": "is down", "silence": "does not answer"}  # fmt: skip
_SHOWN_CHARS = 100_000


class ReceivedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request as the endpoint would have had it. `refused`: why its verifier would have; None: verified."""

    at: float
    endpoint_id: str
    event_id: str
    url: str
    headers: dict[str, str]
    body: bytes
    refused: str | None
    answer: Chosen


class RequestFolder:
    """The requests and what endpoints answer, as files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def answer_of(self, endpoint_id: str) -> Chosen:
        """As it was chosen; at first each takes everything."""
        try:
            text = (self.folder / f"{endpoint_id}.answer").read_text(encoding="ascii").strip()
        except OSError:
            return "200"
        return next((choice for choice in CHOICES if choice == text), "200")

    def choose(self, endpoint_id: str, answer: Chosen) -> None:
        """From its next request on."""
        keep_file(self.folder / f"{endpoint_id}.answer", [answer.encode()])

    def keep(self, request: ReceivedRequest) -> None:
        """Write one down."""
        name = f"{time.time_ns()}-{request.event_id}-{request.endpoint_id}"[:100]
        keep_file(self.folder / f"{name}.json", [msgspec.json.encode(request)])

    def names(self) -> list[str]:
        """The newest first."""
        return sorted((path.stem for path in self.folder.glob("*.json")), reverse=True)

    def find(self, name: str) -> ReceivedRequest:
        """
        Raises:
            EventNotFound: no request has this name.
        """
        try:
            return msgspec.json.decode((self.folder / f"{name}.json").read_bytes(), type=ReceivedRequest)
        except OSError:
            raise EventNotFound("there is no such request in the inbox") from None


class InboxDelivery(WebhookDelivery):
    """Delivers into a folder: nothing is resolved and nothing is connected to."""

    def __init__(self, app: Effects, requests: RequestFolder, current: WebhookDelivery) -> None:
        super().__init__(app, retry=current.retry, short=current.short)
        self._requests = requests

    async def send(
        self, payload: DeliverPayload, loaded: LoadedDelivery, headers: Mapping[str, str], keys: Sequence[bytes],
        seconds: float,
    ) -> WebhookExchange:  # fmt: skip
        exchange = WebhookExchange(seconds)
        answer = self._requests.answer_of(payload.endpoint_id)
        request = ReceivedRequest(
            at=time.time(), endpoint_id=payload.endpoint_id, event_id=payload.event_id, url=loaded.url,
            headers=dict(headers), body=loaded.body, refused=_why_refused(keys, headers, loaded.body), answer=answer,
        )  # fmt: skip
        await asyncio.to_thread(self._requests.keep, request)
        if answer == "silence":
            exchange.fail("answer_timeout", "no answer in time (chosen in the inbox)")
        else:
            exchange.answered(int(answer), [])
        exchange.end()
        return exchange


def _why_refused(keys: Sequence[bytes], headers: Mapping[str, str], body: bytes) -> str | None:
    """What the verifier of our partners says of it."""
    try:
        signing.verify_with(keys, headers, body)
    except SignatureInvalid as error:
        return str(error)
    return None


def inbox(app: Effects, folder: Path) -> Pages:
    """The entry point `effects.dev`: every delivery goes into the folder, whatever address its endpoint has."""
    state_of(app).allow_private = True  # nothing is connected to
    current = app.job_types.get(WebhookDelivery.name)
    assert isinstance(current, WebhookDelivery)
    requests = RequestFolder(folder)
    app.job_types.replace(InboxDelivery(app, requests, current))
    return Pages(
        name="webhooks_inbox", label="", package="effects_webhooks.dashboard",
        navigation=(NavigationEntry("webhooks_inbox", "Webhook inbox", "y"),),
        routes=(
            PageRoute("webhooks_inbox", ("GET",), "/dev/webhooks", partial(_list, requests), role="admin",
                      personal=True),
            PageRoute("webhooks_inbox_request", ("GET",), "/dev/webhooks/{request}", partial(_request, requests),
                      role="admin", personal=True),
            PageRoute("webhooks_inbox_answer", ("POST",), "/dev/webhooks/answers/{endpoint}",
                      partial(_choose, requests), role="admin", personal=True, acts=True),
        ),
    )  # fmt: skip


def _list(requests: RequestFolder, visit: Visit) -> PageAnswer:
    names = requests.names()
    rows = [(name, request, moment(request.at)) for name in names[:PAGE_ROWS] if (request := requests.find(name))]
    return visit.page("webhooks/inbox.html", revealed=True, rows=rows, more=len(names) - len(rows))


def _request(requests: RequestFolder, visit: Visit) -> PageAnswer:
    request = requests.find(visit.values["request"])
    return visit.page(
        "webhooks/inbox_request.html", revealed=True, request=request, came_at=moment(request.at), words=WORDS,
        body=_pretty(request.body)[:_SHOWN_CHARS], chosen=requests.answer_of(request.endpoint_id), choices=CHOICES,
    )  # fmt: skip


def _choose(requests: RequestFolder, visit: Visit) -> PageAnswer:
    endpoint = visit.values["endpoint"]
    answer = choice_of(visit.form, "answer", CHOICES)
    if answer is None:
        raise EndpointNotFound("choose what the endpoint answers")
    requests.choose(endpoint, answer)
    return visit.redirect("webhooks_inbox")


def _pretty(body: bytes) -> str:
    try:
        return msgspec.json.format(body, indent=2).decode()
    except (msgspec.DecodeError, UnicodeDecodeError):
        return body.decode("utf-8", "replace")
