"""What we know to be secret of a request, struck from the answer of a partner that repeats it.

Receivers and gateways quote requests in their errors: as they came, within JSON, HTML or a URL, and encoded. Values of
8 characters and more are replaced in each of these forms, in any case, before an answer is stored.
"""

from __future__ import annotations

import base64
import binascii
import functools
import html
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple
from urllib.parse import quote, quote_plus, unquote, unquote_plus

from effects.extend.text import HIDDEN

CHARS_MIN = 8
_DIGIT = re.compile("[0-9]")
_WORD = re.compile(r"[A-Za-z]{1,15}")  # says what something is, and is no token
_PLAIN = re.compile(rb"[a-zA-Z0-9]+")
_PARTS = re.compile(r"[\s,;]+")
_ENDPOINTS_MAX, _VALUES_MAX = 2_000, 256  # that are kept
_HIDDEN = HIDDEN.encode()
_ELSEWHERE = "!'()*"  # what encodeURIComponent leaves, too
_IN_URL = "/:?=&+$,;@#" + _ELSEWHERE


def shortened(url: str) -> str:
    """An endpoint's URL as many people may see it: partners put tokens into the path and the query.

    Of the path the first step stays, unless it looks like a token: `https://hooks.example.com/services/…`.
    """
    address, mark, _ = url.partition("#")[0].partition("?")
    origin, first, rest = _steps(address)
    path = f"/{first}" if first and not _is_token(first) else ""
    if rest or (first and not path):
        path += "/…"
    return f"{origin}{path or address[len(origin) :]}{'?…' if mark else ''}"


def _steps(address: str) -> tuple[str, str, str]:
    """Origin, first step of the path, and what is behind it."""
    scheme, mark, rest = address.partition("://")
    host, _, path = rest.partition("/")
    first, _, behind = path.partition("/")
    return f"{scheme}{mark}{host}", first, behind


def _is_token(step: str) -> bool:
    """Whether the first step of a path is rather a secret than a name: long, and with a digit."""
    return len(step) >= 16 and _DIGIT.search(step) is not None


class _Secret(NamedTuple):
    """A value, and texts of which one is in every text that holds it in some form."""

    value: bytes
    anchors: tuple[bytes, ...]


def striking(url: str, headers: Mapping[str, str], keys: Sequence[bytes], signatures: str) -> Callable[..., bytes]:
    """A function that returns an answer's bytes without the secrets of its request.

    Args:
        url: the endpoint's; of its path what is behind the first step, and its query.
        headers: of the endpoint, with their values.
        keys: that signed.
        signatures: the value of the signature's header.
    """
    lasting = _of_endpoint(url, tuple(headers.values()), tuple(keys))
    fresh = [_secret(signature.partition(",")[2].encode()) for signature in signatures.split()]
    return functools.partial(_strike, [*lasting, *fresh])


@functools.lru_cache(_ENDPOINTS_MAX)
def _of_endpoint(url: str, headers: tuple[str, ...], keys: tuple[bytes, ...]) -> tuple[_Secret, ...]:
    texts = chain(_of_url(url), *(_of_header(value) for value in headers))
    values = {text.encode() for text in texts} | {*keys, *map(base64.b64encode, keys)}
    return tuple(_secret(value) for value in values if len(value) >= CHARS_MIN)


def _secret(value: bytes) -> _Secret:
    """Every encoding of a text leaves letters and digits as they are, or all of it is in base64 or hexadecimal."""
    longest = [max(_PLAIN.findall(text), key=len, default=b"") for text in (value, *_in_base64(value))]
    return _Secret(value, (value.hex().encode(), *[text.lower() for text in longest]))


def _of_url(url: str) -> Iterator[str]:
    address, _, query = url.partition("#")[0].partition("?")
    _, first, rest = _steps(address)
    steps = [step for step in rest.split("/") if not _WORD.fullmatch(step)]
    for text in (query, rest, *steps, *([first] if _is_token(first) else [])):
        yield from (text, unquote(text))
    for pair in query.split("&"):
        value = pair.partition("=")[2]
        yield from (value, unquote_plus(value))


def _of_header(value: str) -> Iterator[str]:
    """The whole value, the parts of it that are no plain words, and what `Basic` encodes."""
    yield value
    for part in _PARTS.split(value):
        for text in (part, part.partition("=")[2].strip('"')):
            if not _WORD.fullmatch(text):
                yield text
    scheme, _, encoded = value.partition(" ")
    if scheme.lower() == "basic":
        try:
            pair = base64.b64decode(encoded, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            return
        yield from (pair, pair.partition(":")[2])


@functools.lru_cache(_VALUES_MAX)
def _forms(value: bytes) -> frozenset[bytes]:
    """The value and its encodings, in lower case."""
    within = _in_base64(value)
    forms = {value, value.hex().encode(), *within, *(text.translate(_URL_SAFE) for text in within)}
    try:
        text = value.decode()
    except UnicodeDecodeError:
        pass
    else:
        written = _written(text)
        twice = {form for once in written - {text} for form in _written(once)}
        forms |= {form.encode() for form in written | twice}
    return frozenset(form.lower() for form in forms)


def _written(text: str) -> set[str]:
    """As URLs, forms, HTML and JSON of common libraries write it."""
    in_json = json.dumps(text)[1:-1]
    in_html = html.escape(text)
    return {
        text, quote(text, safe=""), quote(text), quote(text, safe=_ELSEWHERE), quote(text, safe=_IN_URL),
        quote_plus(text), in_html, in_html.replace("&#x27;", "&#39;"), in_html.replace("/", "&#x2f;"),
        html.escape(text, quote=False),
        in_json, in_json.replace("/", "\\/"), _UNSAFE_IN_SCRIPT.sub(_unicode_escape, in_json),
        _UNSAFE_IN_JSON.sub(_unicode_escape, in_json.replace('\\"', '"')),
    }  # fmt: skip


_UNSAFE_IN_SCRIPT = re.compile("[<>&]")  # as Go, Ruby on Rails
_UNSAFE_IN_JSON = re.compile("[<>&'+`\"]")  # as .NET


def _unicode_escape(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"


def _in_base64(value: bytes) -> list[bytes]:
    """Alone and within a longer text, at each of three places: only whole characters of the value's."""
    encoded = [base64.b64encode(b"\0" * before + value) for before in range(3)]
    return [text[-(-before * 8 // 6) : (before + len(value)) * 8 // 6] for before, text in enumerate(encoded)]


_URL_SAFE = bytes.maketrans(b"+/", b"-_")


def _strike(secrets: Sequence[_Secret], answer: bytes, *, is_cut: bool = False) -> bytes:
    """The answer with each secret replaced; if it was cut, the beginning of one at its end too."""
    if len(answer) < CHARS_MIN:
        return answer
    lowered = answer.lower()
    spans: list[tuple[int, int]] = []
    for secret in secrets:
        if is_cut or any(map(lowered.__contains__, secret.anchors)):
            for form in _forms(secret.value):
                spans += _places(form, lowered)
                if is_cut:
                    spans += _cut_place(form, lowered)
    return _without(answer, spans) if spans else answer


def _places(form: bytes, lowered: bytes) -> Iterator[tuple[int, int]]:
    at = lowered.find(form)
    while at >= 0:
        yield at, at + len(form)
        at = lowered.find(form, at + len(form))


def _cut_place(form: bytes, lowered: bytes) -> Iterator[tuple[int, int]]:
    at = lowered.find(form[:CHARS_MIN], max(0, len(lowered) - len(form)))
    if at >= 0 and form.startswith(lowered[at:]):
        yield at, len(lowered)


def _without(answer: bytes, spans: list[tuple[int, int]]) -> bytes:
    pieces, done = [], 0
    for start, end in sorted(spans):
        if start >= done:
            pieces += [answer[done:start], _HIDDEN]
        done = max(done, end)
    return b"".join([*pieces, answer[done:]])
