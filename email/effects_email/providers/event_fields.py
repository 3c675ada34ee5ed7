"""Fields of providers' JSON, taken only where they are well-formed: they are stored and shown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime

from effects.extend import is_printable, moment

CODE = re.compile(r"[A-Za-z0-9_.-]{1,64}")
REFERENCE = re.compile(r"[0-9a-f]{32}")
# Why Amazon SES calls a bounce transient that is about the message, and no fault of the address; Resend sends by SES.
OF_MESSAGE = ("MessageTooLarge", "ContentRejected", "AttachmentRejected")
_NAMED = re.compile(r"<([^<>]+)>\s*\Z")


class NotAnEvent(ValueError):
    """The body is not in the provider's form."""


def mapping(value: object) -> Mapping[str, object]:
    """The object, or an empty one in the place of anything else."""
    return value if isinstance(value, Mapping) else {}


def address(value: object) -> str | None:
    """The address, without a name before it."""
    if not isinstance(value, str) or "@" not in value or len(value) > 1000 or not is_printable(value):
        return None
    named = _NAMED.search(value)
    return named.group(1) if named else value.strip()


def keyword(value: object) -> str | None:
    """A provider's keyword, if it is well-formed, since it is stored and shown."""
    return value if isinstance(value, str) and CODE.fullmatch(value) else None


def reference(value: object) -> str | None:
    """A reference of ours, see `transport.fields`."""
    return value if isinstance(value, str) and REFERENCE.fullmatch(value) else None


def time_of(value: object) -> datetime | None:
    """A moment in ISO 8601, or in seconds since 1970; without a time zone it is UTC."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e11:
        return moment(value)
    try:
        at = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return at.replace(tzinfo=UTC) if at is not None and at.tzinfo is None else at
