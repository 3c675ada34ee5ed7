"""`effects webhooks`: endpoints, send, listen."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from contextlib import closing, nullcontext, suppress
from datetime import UTC, datetime
from typing import Any, BinaryIO

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from effects.cli.context import Context, json_option, pass_context
from effects.cli.output import Table, cell
from effects.errors import ConfigurationError
from effects_webhooks import operate
from effects_webhooks.api import deliver_webhook
from effects_webhooks.batch import Report, send_lines
from effects_webhooks.budgets import PROFILES
from effects_webhooks.endpoints import (
    ORDERINGS,
    add_endpoint,
    change_endpoint,
    disable_endpoint,
    enable_endpoint,
    get_endpoint,
    list_endpoints,
)
from effects_webhooks.errors import EndpointInvalid, EventInvalid
from effects_webhooks.event import WebhookEvent
from effects_webhooks.listener import Listener, Received

EXIT_ERROR = 2
SHOWN_CHARS = 200


@click.group()
def webhooks() -> None:
    """Signed webhooks: where they go, sending one, receiving them."""


for _command in (operate.secrets, operate.replay, operate.recover_, operate.test, operate.explain_):
    webhooks.add_command(_command)


# -- endpoints -------------------------------------------------------------------------------------------------


@webhooks.group()
def endpoints() -> None:
    """The addresses that events go to."""


def _pairs(name: str, sep: str, values: Sequence[str]) -> dict[str, str]:
    """`404=full`, `X-Team: billing` → a mapping."""
    found = {}
    for value in values:
        left, middle, right = value.partition(sep)
        if not middle:
            raise EndpointInvalid(f"{name} is written NAME{sep}VALUE")
        found[left.strip()] = right.strip()
    return found


_profile_option = click.option(
    "--profile", type=click.Choice(PROFILES), help="Which failures are tried again for how long. Default: default."
)
_retry_option = click.option(
    "--retry", "retries", multiple=True, metavar="STATUS=BUDGET",
    help="Over the profile: 404=full, 5xx=short, 409=none. Give it again for more.",
)  # fmt: skip
_ordering_option = click.option(
    "--ordering", type=click.Choice(ORDERINGS), help="One event after the other: of all, or of each ordering_key."
)
_header_option = click.option(
    "--header", "headers", multiple=True, metavar="'NAME: VALUE'", help="Sent with each request; stored sealed."
)


@endpoints.command()
@click.argument("url")
@click.option("--pattern", "patterns", multiple=True, metavar="PATTERN",
              help="Event type, a prefix such as 'order.*', or '*'; give it again for more. Default '*'.")  # fmt: skip
@click.option("--secret", metavar="WHSEC", help="The partner's own secret. Default: a fresh one.")
@click.option("--description", metavar="TEXT", help="For people.")
@click.option("--tenant", metavar="NAME", help="It gets the events of this tenant only.")
@_profile_option
@_retry_option
@_ordering_option
@_header_option
@json_option
@pass_context
def add(
    context: Context,
    *,
    url: str,
    patterns: Sequence[str],
    secret: str | None,
    description: str | None,
    tenant: str | None,
    profile: Any,
    retries: Sequence[str],
    ordering: Any,
    headers: Sequence[str],
    as_json: bool,
) -> None:
    """Add an endpoint and print its secret. It is stored sealed and never shown again."""
    made = add_endpoint(
        url, patterns or ("*",), secret=secret, description=description, tenant=tenant, profile=profile or "default",
        overrides=_pairs("--retry", "=", retries), ordering=ordering or "none",
        headers=_pairs("--header", ":", headers), effects=context.app,
    )  # fmt: skip
    context.echo(
        {"id": made.id, "url": url, "patterns": _listed(made.patterns, as_json), "secret": made.secret}, as_json
    )
    if not as_json:
        click.echo("Give the secret to the partner now: it is not shown again.", err=True)


@endpoints.command()
@click.argument("endpoint_id", metavar="ID")
@click.option("--url", metavar="URL", help="Where to from the next try on, for what waits too.")
@click.option("--pattern", "patterns", multiple=True, metavar="PATTERN", help="In place of all there were.")
@_profile_option
@_retry_option
@_ordering_option
@_header_option
@json_option
@pass_context
def change(
    context: Context,
    *,
    endpoint_id: str,
    url: str | None,
    patterns: Sequence[str],
    profile: Any,
    retries: Sequence[str],
    ordering: Any,
    headers: Sequence[str],
    as_json: bool,
) -> None:
    """Change an endpoint; what is not given stays. --retry and --header take the place of all there were."""
    change_endpoint(
        endpoint_id, url=url, patterns=patterns or None, profile=profile, ordering=ordering,
        overrides=_pairs("--retry", "=", retries) if retries else None,
        headers=_pairs("--header", ":", headers) if headers else None, effects=context.app,
    )  # fmt: skip
    context.echo({"id": endpoint_id, "changed": True} if as_json else f"{endpoint_id} is changed", as_json)


@endpoints.command("list")
@click.option("--tenant", metavar="NAME", help="Of this tenant only.")
@json_option
@pass_context
def list_(context: Context, *, tenant: str | None, as_json: bool) -> None:
    """All endpoints, oldest first. No secret is shown."""
    found = list_endpoints(tenant=tenant, effects=context.app)
    rows = [(one.id, one.status, one.failing_since, ", ".join(one.patterns), one.tenant, one.url) for one in found]
    table = Table(("id", "status", "failing_since", "patterns", "tenant", "url"), rows, empty="no endpoints")
    context.echo(found if as_json else table, as_json)


@endpoints.command()
@click.argument("endpoint_id", metavar="ID")
@json_option
@pass_context
def show(context: Context, *, endpoint_id: str, as_json: bool) -> None:
    """One endpoint, without its secret."""
    found = msgspec.structs.asdict(get_endpoint(endpoint_id, effects=context.app))
    context.echo({**found, "patterns": _listed(found["patterns"], as_json)}, as_json)


@endpoints.command()
@click.argument("endpoint_id", metavar="ID")
@click.option("--reason", metavar="TEXT", help="Why; shown with the endpoint.")
@json_option
@pass_context
def disable(context: Context, *, endpoint_id: str, reason: str | None, as_json: bool) -> None:
    """Send nothing more to it; deliveries that wait end cancelled when they fall due."""
    disable_endpoint(endpoint_id, reason=reason, effects=context.app)
    context.echo({"id": endpoint_id, "status": "disabled"} if as_json else f"{endpoint_id} is disabled", as_json)


@endpoints.command()
@click.argument("endpoint_id", metavar="ID")
@json_option
@pass_context
def enable(context: Context, *, endpoint_id: str, as_json: bool) -> None:
    """Send to it again. What was cancelled stays cancelled; `effects webhooks recover` sends it again."""
    enable_endpoint(endpoint_id, effects=context.app)
    context.echo({"id": endpoint_id, "status": "active"} if as_json else f"{endpoint_id} is active", as_json)


def _listed(patterns: Sequence[str], as_json: bool) -> Sequence[str] | str:
    return list(patterns) if as_json else ", ".join(patterns)


# -- send --------------------------------------------------------------------------------------------------------


@webhooks.command()
@click.option("--type", "event_type", metavar="TYPE", help="Event type, such as order.paid.")
@click.option("--data", metavar="JSON", help="The event's data, a JSON object.")
@click.option("--key", metavar="KEY", help="Idempotency key: the same key is one event.")
@click.option("--tenant", metavar="NAME", help="For the endpoints of this tenant.")
@click.option(
    "--file", "file", type=click.File("rb"), metavar="FILE",
    help='One event a line: {"type": …, "data": {…}}, perhaps key, id, occurred_at, tenant, ordering_key. -: stdin.',
)  # fmt: skip
@json_option
@pass_context
def send(
    context: Context,
    *,
    event_type: str | None,
    data: str | None,
    key: str | None,
    tenant: str | None,
    file: BinaryIO | None,
    as_json: bool,
) -> int:
    """Send one event, or a file of them; `effects work` delivers them.

    A bad line of a file is named by its number and the others are sent; the exit code is then 2.
    """
    if file is not None:
        if event_type or data or key or tenant:
            raise click.UsageError("--file goes without --type, --data, --key and --tenant: its lines have them")
        return _send_file(context, file, as_json)
    if event_type is None or data is None:
        raise click.UsageError("give --type and --data, or --file")
    event = WebhookEvent(event_type, _object(data), key=key, tenant=tenant)
    receipt = deliver_webhook(event, effects=context.app)
    known = " (it was known: nothing new is sent)" if receipt.existing else ""
    text = f"event {receipt.event_id}: {_counted(len(receipt.deliveries), 'endpoint')}{known}"
    context.echo(receipt if as_json else text, as_json)
    return 0


def _object(data: str) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except ValueError as error:
        raise EventInvalid(f"--data is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise EventInvalid("--data must be a JSON object, such as '{\"id\": 1}'")
    return found


def _send_file(context: Context, file: BinaryIO, as_json: bool) -> int:
    app = context.app
    progress = _progress() if sys.stderr.isatty() and not as_json else None
    task = progress.add_task("sending", total=_size(file)) if progress else None

    def failed(number: int, reason: str) -> None:
        click.echo(f"error: line {number}: {cell(reason)}", err=True)

    def passed(size: int) -> None:
        if progress is not None and task is not None:
            progress.update(task, advance=size)

    with progress or nullcontext():
        report = send_lines(file, app, failed=failed, passed=passed)
    _print_report(context, report, as_json)
    return EXIT_ERROR if report.errors else 0


def _print_report(context: Context, report: Report, as_json: bool) -> None:
    if as_json:
        errors = [{"line": number, "error": reason} for number, reason in sorted(report.errors)]
        context.echo({**vars(report), "errors": errors}, as_json=True)
        return
    parts = [_counted(report.events, "event"), _counted(report.deliveries, "delivery", "deliveries")]
    if report.existing:
        parts.append(f"{report.existing:,} known before")
    if report.errors:
        parts.append(f"{_counted(len(report.errors), 'line')} refused")
    context.echo(", ".join(parts))


def _counted(count: int, one: str, many: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def _size(file: BinaryIO) -> int | None:
    """The bytes of a regular file; a pipe has no end that is known."""
    try:
        return os.fstat(file.fileno()).st_size or None
    except OSError:
        return None


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn(),
        console=Console(stderr=True),
    )  # fmt: skip


# -- listen ------------------------------------------------------------------------------------------------------


@webhooks.command()
@click.option("--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="0, the default: a free one.")
@click.option("--secret", "secrets", multiple=True, required=True, envvar="EFFECTS_WEBHOOK_SECRET", metavar="WHSEC",
              help="Give it again while a secret is replaced. Or EFFECTS_WEBHOOK_SECRET.")  # fmt: skip
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Where to listen.")
@click.option("--fail-first", type=click.IntRange(min=0), default=0, metavar="N", help="Answer 503 to the first N.")
@click.option("--full", is_flag=True, help="All of the data; else its first 200 characters.")
@json_option
def listen(*, port: int, secrets: Sequence[str], host: str, fail_first: int, full: bool, as_json: bool) -> None:
    """Receive webhooks, verify each, print it; Ctrl-C ends. Answers 200, or 401 to what does not verify.

    With --json one line for each request.
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
