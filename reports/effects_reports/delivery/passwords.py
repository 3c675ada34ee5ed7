"""The passwords of encrypted files: asked of the app when they are needed, and kept nowhere."""

from __future__ import annotations

import hashlib
import string
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from effects.extend import described
from effects_reports.errors import PasswordUnavailable, PasswordUnfit

if TYPE_CHECKING:
    from effects_reports.definitions.definition import ReportDefinition
    from effects_reports.tables.chunks import Chunk
    from effects_reports.tables.runs import Run

CHARS_MIN, CHARS_MAX = 12, 99
DIFFERENT_MIN = 6
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
    if not CHARS_MIN <= len(password) <= CHARS_MAX:
        raise PasswordUnfit(f"{who} has {len(password)} characters; give {CHARS_MIN} to {CHARS_MAX}")
    if not _CHARS.issuperset(password):
        raise PasswordUnfit(f"{who} has characters that programs encode differently; give printable ASCII")
    if len(set(password)) < DIFFERENT_MIN:
        raise PasswordUnfit(f"{who} repeats few characters; give at least {DIFFERENT_MIN} different ones")
    return password


def salt_of(run: Run, chunks: Sequence[Chunk], further: Sequence[str]) -> bytes:
    """The salt of a run's archive: the same for the same bytes, so that a repeated assembly gives the same file.

    All that decides about the bytes is in it, so that no two different files are encrypted alike; so are 128 random
    bits of the run, so that no two runs are. It tells nothing of the password.
    """
    parts = [chunk.sha256 for chunk in chunks]
    facts = msgspec.json.encode([run.prefix, run.round, run.format, run.dialect, run.columns, parts, further])
    return hashlib.sha256(b"effects.reports.zip" + facts).digest()[:_SALT_BYTES]
