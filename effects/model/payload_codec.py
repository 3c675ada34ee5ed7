"""Payloads as JSON: checked when they are enqueued, decoded when they are claimed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Generic, TypeVar, cast

import msgspec

from effects.errors import PayloadInvalid
from effects.model.job import PAYLOAD_BYTES_MAX
from effects.text.payload_json import encode_dict
from effects.text.redact import why_invalid
from effects.text.unfit import why_unfit

P = TypeVar("P")
SEALED = "$sealed"  # where a stored payload keeps its sensitive fields
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")  # as an escape, not as a backslash and letters


class PayloadCodec(Generic[P]):
    """Of one job type.

    Args:
        job_type: its name, for errors.
        payload_class: dataclass, msgspec Struct, or `dict`.
    """

    def __init__(self, job_type: str, payload_class: type[P]) -> None:
        self._job_type, self._class = job_type, payload_class

    def checked(self, payload: P | Mapping[str, Any]) -> tuple[P, str]:
        """Check a payload; gives it as the payload class, and its JSON text.

        Raises:
            PayloadInvalid: it does not convert, is no JSON, or is over 64 KiB.
        """
        try:
            typed, text = self._encode(payload)
            size = len(text.encode())
        except Exception as error:  # of a payload class's own too
            # Without its cause, whose text may quote the value.
            raise self._invalid(f"the payload is not valid: {self._why_unfit(error, payload)}") from None
        if size > PAYLOAD_BYTES_MAX:
            raise self._invalid(
                f"the payload has {size:,} bytes and the limit is {PAYLOAD_BYTES_MAX:,}; "
                "store the large part elsewhere and give its id"
            )
        if "u0000" in text and _NUL.search(text):
            raise self._invalid("the payload holds a NUL character, which PostgreSQL cannot store")
        if SEALED in text and SEALED in msgspec.json.decode(text):
            raise self._invalid(f"the field name {SEALED} is kept for sealed fields; use another")
        return typed, text

    def decode(self, text: str) -> P:
        """The payload of a stored text.

        Raises:
            PayloadInvalid: it does not fit the class, or the class cannot be made of it.
        """
        try:
            return self._decoder.decode(text)
        except MemoryError:
            raise
        except Exception as error:
            raise self._invalid(f"the stored payload is not valid: {why_invalid(error)}") from None

    @cached_property
    def _decoder(self) -> msgspec.json.Decoder[P]:
        """Made once: to understand the class takes as long as to decode a small payload."""
        return msgspec.json.Decoder(self._class)

    def _encode(self, payload: P | Mapping[str, Any]) -> tuple[P, str]:
        if self._class is dict:
            return cast("P", payload), encode_dict(payload)
        typed = msgspec.convert(_plain(payload), self._class)
        return typed, msgspec.json.encode(typed).decode()

    def _why_unfit(self, error: Exception, payload: P | Mapping[str, Any]) -> str:
        if isinstance(error, msgspec.ValidationError):
            return why_unfit(error, _plain(payload), self._class)
        return why_invalid(error)

    def _invalid(self, problem: str) -> PayloadInvalid:
        return PayloadInvalid(f"{self._job_type}: {problem}")


def _plain(payload: object) -> object:
    return payload if isinstance(payload, Mapping) else msgspec.to_builtins(payload)
