"""A request, checked against its report: params, format, key, notices and the password of an encrypted file."""

from __future__ import annotations

import hashlib
import math
import re
import secrets
import string
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from effects import Effects
from effects.extend.arguments import arguments, optional, require
from effects.extend.text import clean_text, described
from effects_reports.definitions.definition import ReportDefinition
from effects_reports.errors import ParamsInvalid, PasswordUnavailable, PasswordUnfit, ReportInvalid
from effects_reports.formats.opening import is_encrypted
from effects_reports.runs.notify import Notify, check_notices
from effects_reports.runs.planner import resolve_parts

if TYPE_CHECKING:
    from effects_reports.definitions.definition import ReportDefinition
    from effects_reports.tables.chunks import Chunk
    from effects_reports.tables.runs import Run


_CHARS_MIN, CHARS_MAX = 12, 99
_DIFFERENT_MIN = 6
_CHARS = frozenset(string.ascii_letters + string.digits + string.punctuation + " ")
_SALT_BYTES = 16


def password_of(definition: ReportDefinition, params: Any, key: str) -> str:
    """What the app gives for a request: no error quotes it.

    Args:
        params: as the report's function takes them.
        key: of the request.

    Raises:
        PasswordUnavailable: its function failed.
        PasswordUnfit: it gave none, or one that is too easily guessed or not typed alike everywhere.
    """
    who = f"report {definition.name!r}: the password"
    if definition.password is None:
        raise PasswordUnfit(f"{who} is not given any more: its definition has lost password= since the request")
    try:
        password = definition.password(params, key)
    except Exception as error:  # whatever the app raises; its text may quote secrets
        raise PasswordUnavailable(f"{who} is not to be had: its function raised {type(error).__name__}") from None
    if not isinstance(password, str):
        raise PasswordUnfit(f"{who} is {described(type(password))}; its function must return a text")
    if not _CHARS_MIN <= len(password) <= CHARS_MAX:
        raise PasswordUnfit(f"{who} has {len(password)} characters; give {_CHARS_MIN} to {CHARS_MAX}")
    if not _CHARS.issuperset(password):
        raise PasswordUnfit(f"{who} has characters that programs encode differently; give printable ASCII")
    if len(set(password)) < _DIFFERENT_MIN:
        raise PasswordUnfit(f"{who} repeats few characters; give at least {_DIFFERENT_MIN} different ones")
    return password


def salt_of(run: Run, chunks: Sequence[Chunk], further: Sequence[str]) -> bytes:
    """The salt of a run's archive: the same for the same bytes, so that a repeated assembly gives the same file.

    All that decides about the bytes is in it, so that no two different files are encrypted alike; so are 128 random
    bits of the run, so that no two runs are. It tells nothing of the password.
    """
    parts = [chunk.sha256 for chunk in chunks]
    facts = msgspec.json.encode([run.prefix, run.round, run.format, run.dialect, run.columns, parts, further])
    return hashlib.sha256(b"effects.reports.zip" + facts).digest()[:_SALT_BYTES]


_REQUEST_KEY_CHARS_MAX = 200
_PARAMS_BYTES_MAX = 65_536
_DEFAULT_KEY = re.compile(r"(new-)?[0-9a-f]{16}|job-[0-9]+")


class CheckedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that has been checked."""

    report: str
    key: str
    params: Any
    format: str
    dialect: str
    consistency: str
    notify: Sequence[Notify]
    canonical: str


def check_request(
    app: Effects, definition: ReportDefinition, params: Any, format_name: str | None, key: str | None,
    notices: Sequence[Notify],
) -> CheckedRequest:  # fmt: skip
    file = format_name or definition.formats[0]
    if file not in definition.formats:
        raise ReportInvalid(
            f"report {definition.name!r}: no format {file!r}; it offers {', '.join(definition.formats)}"
        )
    require("key", key, optional(arguments.printable(_REQUEST_KEY_CHARS_MAX)), ReportInvalid)
    typed = definition.read_params(params)
    resolve_parts(definition, typed, file, definition.dialect, datetime.now(UTC))
    plain = _plain_params(definition, typed)
    encoded = msgspec.json.encode({"report": definition.name, "params": plain, "format": file}, order="sorted")
    if len(encoded) > _PARAMS_BYTES_MAX:
        raise ReportInvalid(f"report {definition.name!r}: the params have {len(encoded):,} bytes; at most 65,536")
    key = key or _key_without(definition, encoded)
    check_notices(app, notices, report=definition.name, key=key)
    if is_encrypted(file):
        password_of(definition, typed, key)
    return CheckedRequest(
        report=definition.name, key=key, params=plain, format=file,
        dialect=definition.dialect, consistency=definition.consistency, notify=tuple(notices),
        canonical=encoded.decode(),
    )  # fmt: skip


def _plain_params(definition: ReportDefinition, typed: Any) -> Any:
    """The params as their row has them.

    Raises:
        ParamsInvalid: they hold what JSON has no word for, or PostgreSQL no place.
    """
    try:
        plain = msgspec.to_builtins(typed)
        why = _why_unstorable(plain)
    except (TypeError, RecursionError) as error:
        why = str(error)
    if why is not None:
        raise ParamsInvalid(f"report {definition.name!r}: the params cannot be stored: {why}")
    return plain


def _why_unstorable(value: Any) -> str | None:
    if isinstance(value, str):
        return None if clean_text(value, len(value)) == value else "a text has a NUL character, or half of another one"
    if isinstance(value, float):
        return None if math.isfinite(value) else "a number is NaN or infinite"
    if isinstance(value, Mapping):
        if not all(isinstance(name, str) for name in value):
            return "a name is no text"
        value = [*value, *value.values()]
    if isinstance(value, list | tuple | set | frozenset):
        return next(filter(None, map(_why_unstorable, value)), None)
    return None


def _key_without(definition: ReportDefinition, encoded: bytes) -> str:
    """Each request of an incremental report is its own run: what is new differs."""
    if definition.incremental:
        return f"{definition.name}:new-{secrets.token_hex(8)}"
    return _derived_key(definition.name, encoded)


def _derived_key(report: str, encoded: bytes) -> str:
    """The key of a request without one: the same report, params and format are the same run.

    The params stand beside it in clear, so their digest needs no key of ours.
    """
    return f"{report}:{hashlib.sha256(encoded).hexdigest()[:16]}"


def key_of_job(report: str, job_id: int) -> str:
    """The key of a request that a job makes and that names none: each such job is its own run."""
    return f"{report}:job-{job_id}"


def is_default_key(report: str, key: str) -> bool:
    """Whether the caller gave no key, so that the file is named for the report."""
    return _DEFAULT_KEY.fullmatch(key.removeprefix(f"{report}:")) is not None
