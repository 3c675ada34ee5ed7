"""`effects reports buckets` and `links`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

import click
import msgspec

from effects.cli import CommandResult, Context, Table, actor, command, limit_option, listed, parse_age, reason_option
from effects_reports.admin import make_link
from effects_reports.delivery.buckets import (
    BucketCredentials,
    CustomerBucket,
    add_bucket,
    list_buckets,
    remove_bucket,
    rotate_bucket,
)
from effects_reports.delivery.link_tokens import USES_MAX
from effects_reports.errors import BucketInvalid

name_argument = click.argument("name", metavar="BUCKET")
credentials_option = click.option(
    "--credentials", "file", type=click.File(), required=True, metavar="FILE",
    help='JSON file {"access_key_id": …, "secret_access_key": …}; - reads stdin.',
)  # fmt: skip


@click.group()
def buckets() -> None:
    """Manage the buckets that files are delivered into."""


@buckets.command()
@name_argument
@click.argument("url", metavar="URL")
@credentials_option
@reason_option
@command
def add(context: Context, *, name: str, url: str, file: TextIO, reason: str | None) -> CommandResult:
    """Add a bucket.

    URL is s3://bucket/prefix?region=REGION, for other stores than Amazon's with &endpoint=https://HOST. The credentials
    are stored encrypted and never shown.
    """
    add_bucket(name, url, _credentials(file), actor=actor(), reason=reason, effects=context.app)
    return CommandResult({"name": name, "result": "added"}, f"{name} added")


@buckets.command()
@name_argument
@credentials_option
@reason_option
@command
def rotate(context: Context, *, name: str, file: TextIO, reason: str | None) -> CommandResult:
    """Replace a bucket's credentials."""
    rotate_bucket(name, _credentials(file), actor=actor(), reason=reason, effects=context.app)
    return CommandResult({"name": name, "result": "rotated"}, f"{name} rotated")


@buckets.command()
@name_argument
@reason_option
@command
def remove(context: Context, *, name: str, reason: str | None) -> CommandResult:
    """Forget a bucket and its credentials. Delivered files stay."""
    subscriptions = remove_bucket(name, actor=actor(), reason=reason, effects=context.app)
    words = f"; subscriptions that still deliver into it: {subscriptions}" if subscriptions else ""
    return CommandResult({"name": name, "result": "removed", "subscriptions": subscriptions}, f"{name} removed{words}")


@buckets.command("list")
@limit_option
@command
def list_(context: Context, *, limit: int) -> CommandResult:
    """List buckets, without credentials."""
    return listed(list_buckets(effects=context.app), limit, _table)


def _table(rows: Sequence[CustomerBucket]) -> Table:
    cells = [(row.name, row.url, row.subscriptions, row.created_at, row.updated_at) for row in rows]
    return Table(("name", "url", "subscriptions", "created", "rotated"), cells, empty="no buckets")


def _credentials(file: TextIO) -> BucketCredentials:
    """As the file has them; its text is in no error."""
    try:
        return msgspec.json.decode(file.read(), type=BucketCredentials)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        pass
    raise BucketInvalid('the credentials are no JSON {"access_key_id": …, "secret_access_key": …}')


@click.command()
@click.argument("run_id", metavar="RUN")
@click.option("--at", "base_url", metavar="URL", required=True, help="Where download_app is mounted.")
@click.option(
    "--for",
    "seconds",
    type=parse_age,
    default="15m",
    show_default=True,
    metavar="AGE",
    help="How long the link is valid.",
)
@click.option("--uses", type=click.IntRange(1, USES_MAX), metavar="N", help="Maximum downloads. Default: any number.")
@click.option("--principal", metavar="PERSON", help="The only person it opens for. Default: whoever has it.")
@reason_option
@command
def link(
    context: Context,
    *,
    run_id: str,
    base_url: str,
    seconds: float,
    uses: int | None,
    principal: str | None,
    reason: str | None,
) -> CommandResult:
    """Make a new link to the file of a run.

    Earlier links stay as they are. The link itself is recorded nowhere.
    """
    url = make_link(
        run_id, base_url, seconds=seconds, uses=uses, principal=principal, actor=actor(), reason=reason,
        effects=context.app,
    )  # fmt: skip
    return CommandResult({"run_id": run_id, "url": url}, url)
