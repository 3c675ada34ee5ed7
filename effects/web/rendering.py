"""Pages from templates. Every text of a row is escaped, and cleaned of what could turn or hide it.

Whatever looks like an e-mail address is shown as `•••@domain`, unless what is personal was asked for.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import re
from collections.abc import Callable, Mapping
from functools import partial
from importlib.resources import files
from typing import Any

from effects.errors import ConfigurationError
from effects.kit.moments import FIRST, LAST
from effects.kit.text.database_error import code_words
from effects.kit.text.unsafe import lines_without_unsafe
from effects.kit.text.wording import duration, moment_text
from effects.model.limits import ends_by_itself
from effects.operate.tables.job_list import STATUS_MAX

try:
    from jinja2 import BaseLoader, ChoiceLoader, Environment, PackageLoader, PrefixLoader, StrictUndefined
    from markupsafe import Markup, escape
except ImportError as error:
    raise ConfigurationError("the dashboard needs jinja2: pip install 'effects-toolkit[web]'") from error

from effects.web import charts

_AT = re.compile("([@\uff20]|%40)")
_ENDS_NAME = re.compile(r"[\s<>()\[\],;:\"]")  # before the name in an address, unless that is quoted
_COMMAND = re.compile(r"`([^`]+)`")
_TIME = re.compile(r"\b([0-9]{4}-[0-9]{2}-[0-9]{2}) ([0-9]{2}:[0-9]{2}:[0-9]{2})Z")  # as `moment_text` writes it
STATIC_TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
HIDDEN_NAME = "•••@"
_SHORT_CHARS = 16
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))

# What a status, an outcome or a state of an effect looks like: never by its colour alone.
_TONES = {
    "succeeded": "good", "done": "good", "alive": "good", "active": "good", "closed": "good", "ok": "good",
    "queued": "calm", "running": "live", "retrying": "warn", "failed": "warn", "waiting": "calm", "snoozed": "calm",
    "dead": "bad", "refused": "bad", "unknown": "odd", "lost": "odd", "timed_out": "warn", "released": "live",
    "intended": "calm", "cancelled": "calm", "abandoned": "calm", "silent": "bad", "draining": "warn", "idle": "warn",
    "paused": "warn", "retired": "calm", "invalid": "bad", "open": "bad", "half_open": "warn", "warning": "warn",
    "error": "bad", "failing": "bad", "disabled": "warn", "ready": "good", "requested": "calm", "planning": "live",
    "assembling": "live", "cancelling": "warn", "expired": "calm", "pending": "calm", "split": "calm",
    "stopped": "bad", "accepted": "good", "suppressed": "warn", "lacking": "warn",
    "unserved": "bad", "unregistered": "bad", "blocked": "bad", "put off": "calm",
}  # fmt: skip
_SHAPES = {"good": "●", "calm": "○", "live": "◐", "warn": "▲", "bad": "■", "odd": "◆"}


class Exact(str):
    """A text that a page has as it is, only escaped: an address of ours, or a value that the person's browser sends."""

    __slots__ = ()


class StaticFiles:
    """The files that pages load, each under the beginning of its own SHA-256: it may be kept forever."""

    def __init__(self) -> None:
        folder = files("effects.web") / "static"
        self._files = {file.name: file.read_bytes() for file in folder.iterdir() if file.name.count(".") == 1}
        self.hashes = {name: hashlib.sha256(body).hexdigest()[:12] for name, body in self._files.items()}

    def find(self, digest: str, name: str) -> tuple[bytes, str] | None:
        """The file and its content type; None where no file has this name and hash."""
        if self.hashes.get(name) != digest:
            return None
        return self._files[name], STATIC_TYPES[name.rpartition(".")[2]]


class PageRenderer:
    """The templates, with addresses hidden and, where a person has asked for them, as they are.

    Args:
        packages: what the names of a package's templates begin with → the package that has them.
    """

    def __init__(self, packages: Mapping[str, str]) -> None:
        self.static = StaticFiles()
        theirs = PrefixLoader({name: PackageLoader(package) for name, package in packages.items()})
        loader = ChoiceLoader([PackageLoader("effects.web"), theirs])
        self._environments = {revealed: _environment(loader, revealed=revealed) for revealed in (False, True)}

    def render(self, template: str, values: Mapping[str, Any], *, revealed: bool) -> bytes:
        text = self._environments[revealed].get_template(template).render(values)
        return text.encode("utf-8", errors="replace")


def _environment(loader: BaseLoader, *, revealed: bool) -> Environment:
    cleaned: Callable[[Any], Any] = partial(shown, revealed=revealed)
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, finalize=cleaned,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters.update(
        time=_time,
        until=_until,
        ago=_ago,
        span=_span,
        short=_short,
        status_code=_status_code,
        duration=duration,
        count=lambda value: f"{value:,}",
        capped=lambda value: f"{value:,}" if value <= STATUS_MAX else "10k+",
        seconds=_seconds,
        rate=lambda value: "–" if value is None else f"{value:,.1f}".removesuffix(".0"),
        words=lambda value: str(value).replace("_", " "),
        prose=lambda value: _prose(cleaned(str(value))),
        name=_name,
        code_words=code_words,
        exact=lambda value: None if value is None else Exact(value),
        chip=_chip,
    )
    environment.globals.update(charts=charts)
    return environment


def shown(value: Any, *, revealed: bool) -> Any:
    """A value as a page may have it; markup of our own stays as it is."""
    if value is None:
        return "–"
    if isinstance(value, Markup | Exact) or not isinstance(value, str):
        return value
    text = lines_without_unsafe(value)
    return text if revealed else _without_names(text)


def in_address(value: object, *, personal: bool) -> str:
    """A value as an address of ours has it: what a page would hide of a row's text is hidden there, too."""
    return str(value) if personal or isinstance(value, Exact) else _without_names(str(value))


def _without_names(text: str) -> str:
    """Hide what stands before each `@`, as far as a name in an address may reach (RFC 5322), however it is written."""
    pieces = _AT.split(text)
    for number in range(0, len(pieces) - 1, 2):
        before, after = pieces[number], pieces[number + 2]
        if after and not after[0].isspace() and (kept := _start_of_name(before)) < len(before):
            pieces[number], pieces[number + 1] = before[:kept], HIDDEN_NAME
    return "".join(pieces)


def _start_of_name(before: str) -> int:
    """Where the name begins; at the end, if there is no name, as in the path `/@handle`."""
    if before.endswith("/"):
        return len(before)
    if before.endswith('"') and (quoted := before.rfind('"', 0, -1)) >= 0:
        return quoted
    end = _ENDS_NAME.search(before[::-1])
    return 0 if end is None else len(before) - end.start()


def _name(value: str | None) -> Markup:
    """Who acted: an address may be a colleague's name, and is not hidden."""
    return escape("–" if value is None else lines_without_unsafe(value))


def _time(value: dt.datetime | None) -> Markup:
    """A time in UTC, which `app.js` shows in the viewer's own zone beside."""
    if value is None:
        return Markup("–")
    if value in (FIRST, LAST):  # which no browser is to convert
        return escape(moment_text(value))
    stamp = value.astimezone(dt.UTC).isoformat(timespec="milliseconds")
    return Markup('<time datetime="{}">{}</time>').format(stamp, moment_text(value))


def _ago(value: dt.datetime | None) -> Markup:
    """How long ago it was, or how soon it will be; the time itself by hover. `app.js` keeps it up to date."""
    if value is None or value in (FIRST, LAST):
        return _time(value)
    stamp, seconds = value.astimezone(dt.UTC), (dt.datetime.now(dt.UTC) - value).total_seconds()
    words = f"in {_span(-seconds)}" if seconds < 0 else f"{_span(seconds)} ago"
    return Markup('<time datetime="{}" title="{}" data-ago>{}</time>').format(
        stamp.isoformat(timespec="milliseconds"), moment_text(value), words
    )


def _span(seconds: float) -> str:
    """A length of time in its largest unit: `12 s`, `18 min`, `3 h`, `5 d`."""
    size, unit = next((pair for pair in _UNITS if seconds >= pair[0]), _UNITS[-1])
    return f"{max(0, int(seconds)) // size} {unit}"


def _until(value: dt.datetime | None) -> Markup:
    """When a pause ends: at its time, or by a person."""
    if value is not None and not ends_by_itself((value - dt.datetime.now(dt.UTC)).total_seconds()):
        return Markup("until it is resumed")
    return Markup("until {}").format(_time(value))


def _seconds(value: float | None) -> str:
    """A short length of time: `4 ms`, `1.25 s`, `2 min 5 s`."""
    if value is None:
        return "–"
    if value < 1:
        return f"{value * 1000:.0f} ms"
    return f"{value:.3g} s" if value < 60 else duration(value)


def _prose(text: str) -> Markup:
    """Sentences: commands, in backticks, are shown as such, and times as tables have them, in the viewer's own zone."""
    marked = _COMMAND.sub(r"<code>\1</code>", str(escape(text)))
    return Markup(_TIME.sub(r'<time datetime="\1T\2Z">\1 \2Z</time>', marked))  # noqa: S704 - escaped before


def _short(value: object) -> str:
    """An id in a cell of a table: `ep_…VDCQ`, `1f3a…09bc`. The whole one stands beside it, by hover and to copy."""
    text = str(value)
    if len(text) <= _SHORT_CHARS:
        return text
    kind, mark, _ = text[:_SHORT_CHARS].rpartition("_")
    return f"{kind}{mark}…{text[-4:]}" if mark else f"{text[:4]}…{text[-4:]}"


def _status_code(value: object) -> Markup:
    """The status of a response; whatever else a row has there is shown as text."""
    is_good = isinstance(value, int) and 200 <= value <= 299
    tone = "good" if is_good else "bad"
    return Markup('<span class="chip {} code">{}</span>').format(tone, lines_without_unsafe(str(value)))


def _chip(value: object) -> Markup:
    """A status as its own word with a shape and a colour: one vocabulary is never turned into another here."""
    word = str(value)
    tone = _TONES.get(word, "calm")
    shape = Markup('<span aria-hidden="true">{}</span>').format(_SHAPES[tone])
    return Markup('<span class="chip {}">{} {}</span>').format(
        tone, shape, lines_without_unsafe(word.replace("_", " "))
    )
