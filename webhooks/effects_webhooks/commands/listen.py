"""`effects webhooks listen`: a receiver for people who try things out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime
from typing import Any

import click

from effects import ConfigurationError
from effects.cli import cell, json_option
from effects_webhooks.listener import Listener, Received

SHOWN_CHARS = 200


@click.command()
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="Port to listen on. Default: a free one."
)
@click.option("--secret", "secrets", multiple=True, required=True, envvar="EFFECTS_WEBHOOK_SECRET", metavar="WHSEC",
              help="Secret to verify with. Repeatable. Default: EFFECTS_WEBHOOK_SECRET.")  # fmt: skip
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Address to listen on.")
@click.option(
    "--fail-first",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Number of requests to answer with 503 first.",
)
@click.option("--full", is_flag=True, help="All of the data, not only its first 200 characters.")
@json_option
def listen(*, port: int, secrets: Sequence[str], host: str, fail_first: int, full: bool, as_json: bool) -> None:
    """Receive webhooks, verify and print them, until Ctrl-C.

    Answers 200, or 401 if the signature is invalid. With --json, one line per request.
    """

    def seen(received: Received) -> None:
        click.echo(_line(received) if as_json else _words(received, full=full))

    try:
        listener = Listener(port, secrets, seen, host=host, fail_first=fail_first)
    except OSError as error:
        raise ConfigurationError(f"cannot listen on {host} port {port}: {error.strerror or error}") from None
    click.echo(f"listening on http://{host}:{listener.port}/ (Ctrl-C ends)", err=True)
    with closing(listener), suppress(KeyboardInterrupt):
        listener.serve()


def _line(received: Received) -> str:
    event = _event(received)
    return json.dumps(
        {"status": received.status, "id": received.message_id, "repeat": received.repeat, "reason": received.reason,
         "event": event}
    )  # fmt: skip


def _words(received: Received, *, full: bool) -> str:
    event = _event(received)
    name = event.get("type") if isinstance(event, dict) else None
    verdict = "verified" if received.status == 200 else f"answered {received.status}: {received.reason}"
    again = " (a repeat)" if received.repeat else ""
    data = json.dumps(event.get("data"), ensure_ascii=False) if isinstance(event, dict) else ""
    if not full and len(data) > SHOWN_CHARS:
        data = f"{data[:SHOWN_CHARS]}… (--full shows all {len(data):,} characters)"
    now = datetime.now(UTC).strftime("%H:%M:%S")
    parts = (now, received.message_id, name, f"{verdict}{again}", data if received.status == 200 else "")
    return "  ".join(cell(part) for part in parts).rstrip()


def _event(received: Received) -> Any:
    """The body's JSON, of verified requests only; what a stranger sent is not shown."""
    if received.status == 401:
        return None
    try:
        return json.loads(received.body)
    except ValueError:
        return None
