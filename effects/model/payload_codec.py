"""Payloads as JSON: checked when they are enqueued, decoded when they are claimed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from types import NoneType
from typing import Any, Generic, TypeVar, cast

import msgspec

from effects.errors import PayloadInvalid
from effects.kit.plain_values import NOT_JSON, NoJsonForm, path_of_fault, to_plain
from effects.kit.text.redact import why_invalid, why_unfit
from effects.kit.text.wording import described
from effects.model.job import PAYLOAD_BYTES_MAX

_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))  # construction is expensive
_NAMES, _PLAIN = frozenset([str]), frozenset([str, int, bool, NoneType])  # msgspec writes these as `json` does
P = TypeVar("P")
SEALED = "$sealed"  # where a stored payload keeps its sensitive fields
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")  # as an escape, not as a backslash and letters


def encode_dict(payload: Any) -> str:
    """Encode it compactly.

    Raises:
        TypeError, ValueError: something in it has no JSON, such as a date, a number that is not one, or a circle.
        UnicodeEncodeError: a text has half a character.
    """
    is_plain = type(payload) is dict and _PLAIN.issuperset(map(type, payload.values()))
    if is_plain and _NAMES.issuperset(map(type, payload)):
        return msgspec.json.encode(payload).decode()
    return _JSON.encode(payload)


def json_of(payload: Any) -> str:
    """Encode one of any class.

    Raises:
        As `encode_dict`.
    """
    text = msgspec.json.encode(payload, enc_hook=to_plain).decode()
    if "null" in text:  # as msgspec writes NaN and infinities, which `json` refuses
        encode_dict(to_plain(payload))
    return text


def why_no_json(error: Exception, value: object) -> str:
    """Say in words why `json_of` refuses a value, and where in it; quotes nothing of it."""
    reason, path = str(error) if isinstance(error, NoJsonForm) else why_invalid(error), ""
    if isinstance(error, UnicodeEncodeError):
        reason = "a text has half of a surrogate pair"
    if isinstance(error, NOT_JSON):
        with suppress(Exception):  # of the value's own classes
            path = path_of_fault(value, lambda part: encode_dict(to_plain(part)).encode())
    return f"{reason} - at `${path}`" if path else reason


class PayloadCodec(Generic[P]):
    """Of one job type.

    Args:
        job_type: its name, for errors.
        payload_class: dataclass, msgspec Struct, or `dict`.
        make: makes what msgspec cannot, of its class and what JSON has; else raises NotImplementedError.
    """

    def __init__(self, job_type: str, payload_class: type[P], make: Callable[[type, Any], Any] | None = None) -> None:
        self._job_type, self._class, self._make = job_type, payload_class, make

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
        return msgspec.json.Decoder(self._class, dec_hook=self._make)

    def _encode(self, payload: P | Mapping[str, Any]) -> tuple[P, str]:
        if self._class is not dict:
            typed = self._convert(_plain(payload))
            return typed, json_of(typed)
        try:
            text = encode_dict(payload)
        except TypeError:  # it holds what is no JSON, such as a Decimal, or is a model
            payload = to_plain(payload)
            text = encode_dict(payload)
        if not isinstance(payload, Mapping):
            raise NoJsonForm(f"{described(payload)} is no JSON object: give a dict, a dataclass, a Struct or a model")
        return cast("P", payload), text

    def _convert(self, plain: object) -> P:
        return msgspec.convert(plain, self._class, dec_hook=self._make)

    def _why_unfit(self, error: Exception, payload: P | Mapping[str, Any]) -> str:
        if isinstance(error, msgspec.ValidationError):
            return why_unfit(error, _plain(payload), self._class)
        return why_no_json(error, payload)

    def _invalid(self, problem: str) -> PayloadInvalid:
        return PayloadInvalid(f"{self._job_type}: {problem}")


def _plain(payload: object) -> object:
    return payload if isinstance(payload, Mapping) else to_plain(payload)
