"""Options that several commands share: one name, one grammar and one meaning for each."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import wraps
from typing import Any, TypeAlias, TypeVar

import click

from effects.cli.context import Context
from effects.kit import lazy
from effects.kit.moments import FOREVER_SECONDS
from effects.kit.text.unsafe import whole_number
from effects.kit.text.wording import RETRYING, shown_status
from effects.store.db.sql import Window

with lazy.modules(__name__):
    from effects.operate.tables import lookup

Callback = TypeVar("Callback", bound=Callable[..., Any])
Decorator: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]

LIST_DEFAULT = 50
LIST_MAX = 10_000
ID_MAX = 2**62
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def option_group(*options: Decorator) -> Decorator:
    """Several options as one decorator; `--help` lists them in this order."""

    def decorate(run: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            run = option(run)
        return run

    return decorate


class JobId(click.IntRange):
    """The number of a job."""

    name = "job id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number; a key given in its place is told how keys are given."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"{value!r} is no job id; give the number of a job, or find it by --key", param, ctx)


class TimeSpan(click.FloatRange):
    """A length of time as a number. Not NaN, which lies in every range: all comparisons with it are false."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number, if it is in the range."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a length of time", param, ctx)
        return number


def parse_age(text: str) -> float:
    """`90s`, `15m`, `6h`, `3d`: a length of time, in seconds. The `type` of an option.

    Raises:
        click.BadParameter: says how it is written.
    """
    matched = re.fullmatch(r"([0-9]{1,6})([smhd])", text)
    seconds = float(int(matched[1]) * _UNITS[matched[2]]) if matched else 0.0
    if not 0 < seconds <= FOREVER_SECONDS:
        raise click.BadParameter(f"{text!r} is not a length of time; give a number and s, m, h or d, such as 6h")
    return seconds


def parse_json(text: str | bytes, option: str, refused: Callable[[str], Exception] = click.UsageError) -> Any:
    """The JSON that was given with an option.

    Raises:
        refused: called with the reason why it is not.
    """
    try:
        return json.loads(text)
    except ValueError as error:
        raise refused(f"{option} is not JSON: {error}") from None
    except RecursionError:
        raise refused(f"{option} is nested too deeply") from None


def parse_object(
    text: str | bytes,
    option: str,
    refused: Callable[[str], Exception] = click.UsageError,
    *,
    example: str | None = None,
) -> dict[str, Any]:
    """The JSON object that was given with an option.

    Raises:
        refused: called with the reason why it is not.
    """
    value = parse_json(text, option, refused)
    if not isinstance(value, dict):
        raise refused(f"{option} must be a JSON object{'' if example is None else f', such as {example!r}'}")
    return value


def parse_time(text: str) -> datetime:
    """A time in ISO 8601, in UTC unless it has a zone. The `type` of an option.

    Raises:
        click.BadParameter: says how it is written.
    """
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        reason = f"{text!r} is not a time; give one such as 2026-11-21 or 2026-11-21T08:00:00Z"
        raise click.BadParameter(reason) from None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


# -- lists ---------------------------------------------------------------------------------------------------


def limit_option(function: Callback) -> Callback:
    """`--limit` of a list, and how its table is shown on a terminal, which `command` reads."""
    limit = click.option(
        "--limit", type=click.IntRange(1, LIST_MAX), default=LIST_DEFAULT, show_default=True, metavar="N",
        help="Maximum number of rows.",
    )  # fmt: skip
    wide = click.option(
        "-o", "--output", type=click.Choice(["wide"]), help="wide: every column, however narrow the terminal is."
    )
    utc = click.option("--utc", is_flag=True, help="Times in UTC, on a terminal too, which has ages.")
    return limit(wide(utc(function)))


def newest_option(most: int) -> Callable[[Callback], Callback]:
    """`--limit` of an action: without it, on all."""
    words = f"Only the newest N jobs, at most {most}. Default: all."
    return click.option("--limit", type=click.IntRange(1, most), metavar="N", help=words)


def _checked_type(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is not None and (context := ctx.find_object(Context)) is not None:
        app = context.app
        with app.store.read() as connection:
            lookup.refuse_unknown_type(app.store, connection, value, app.job_types.names())
    return value


def _checked_queue(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is not None and (context := ctx.find_object(Context)) is not None:
        app = context.app
        with app.store.read() as connection:
            lookup.refuse_unknown_queue(app.store, connection, value, sorted(app.queues))
    return value


type_option = click.option(
    "--type", "job_type", metavar="NAME", callback=_checked_type, help="Job type, such as webhook.deliver."
)
queue_option = click.option("--queue", metavar="NAME", callback=_checked_queue, help="Only jobs of this queue.")
code_option = click.option("--code", "error_code", metavar="CODE", help="Error code, such as http_410.")


def _not_empty(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Refuse what a variable that is not set gives: every message has it as a part, and many rows have no tenant."""
    if value == "":
        raise click.BadParameter("it is empty, and would select what it does not name: give a value, or leave it out")
    return value


text_option = click.option("--text", metavar="TEXT", callback=_not_empty, help="Part of the last error message.")
tenant_option = click.option(
    "--tenant", metavar="NAME", callback=_not_empty, help="Tenant of the app, such as a webhook endpoint's."
)
key_option = click.option("--key", metavar="KEY", help="Idempotency key.")


def _word(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is not None and not re.fullmatch(r"\w+", value):
        raise click.BadParameter(f"{value!r} is not a word: give letters, digits and underscores, or use --text")
    return value


word_option = click.option("--word", metavar="WORD", callback=_word, help="Whole word of the last error message.")


def _row_id(text: str) -> int:
    """The number of a row. As a function, so that `--help` leaves out what a database can count to."""
    number = whole_number(text)
    if number is None or not 1 <= number <= ID_MAX:
        raise click.BadParameter(f"{text} is not in the range 1<=x<={ID_MAX}.")
    return number


def before_option(what: str, metavar: str = "ID") -> Callable[[Callback], Callback]:
    """`--before ID`, by which the next page begins where this one ended."""
    words = f"Only {what} before this {metavar}: the next page."
    return click.option("--before", type=_row_id, metavar=metavar, help=words)


def before_key_option(what: str, metavar: str) -> Callable[[Callback], Callback]:
    """`--before` of a list whose rows have names rather than numbers."""
    words = f"Only {what} older than this {metavar}: the next page."
    return click.option("--before", metavar=metavar, help=words)


class _Status(click.Choice[str]):
    """A status by the one name that people and scripts have for it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The status; the column's own word for `retrying` is answered by that."""
        if shown_status(value) != value and RETRYING in self.choices:
            self.fail(f"{value!r} is what the column has; the status is {RETRYING!r}", param, ctx)
        return super().convert(value, param, ctx)


def status_option(statuses: Sequence[str]) -> Callable[[Callback], Callback]:
    """`--status`, one of these."""
    return click.option("--status", type=_Status(statuses), help="Only rows with this status.")


def window_options(event: str) -> Decorator:
    """`--since`, `--until`, `--older` and `--newer`, handed over as one `window`.

    Args:
        event: what happened at the time that they are about, such as `ended`.
    """

    def decorate(run: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(run)
        def with_window(*args: Any, **options: Any) -> Any:
            bounds = {name: options.pop(name) for name in ("since", "until", "older", "newer")}
            return run(*args, window=Window(**bounds), **options)

        return bounds_options(with_window)

    def bound_option(name: str, kind: Callable[[str], Any], bound: str) -> Decorator:
        metavar = "AGE" if kind is parse_age else "TIME"
        return click.option(f"--{name}", type=kind, metavar=metavar, help=f"Only rows that {event} {bound}.")

    bounds_options = option_group(
        bound_option("since", parse_time, "at this time or later, such as 2026-11-21T08:00:00Z"),
        bound_option("until", parse_time, "before this time"),
        bound_option("older", parse_age, "longer ago than this, such as 6h"),
        bound_option("newer", parse_age, "less than this ago, such as 15m"),
    )
    return decorate


# -- actions -------------------------------------------------------------------------------------------------

_REASON = "Reason, recorded with the change."
reason_option = click.option("--reason", metavar="TEXT", help=_REASON)
required_reason_option = click.option("--reason", metavar="TEXT", required=True, help=_REASON)
for_option = click.option("--for", "seconds", type=parse_age, metavar="AGE",
                          help="Length of the pause, such as 15m. Default: until `resume`.")  # fmt: skip


# The one word that lets pass what the guard refuses, for every command that makes an effect again.
override_option = click.option(
    "--even-if-done", is_flag=True, help="Override: even if the effect is done, or may have happened."
)
