"""Sensitive fields of a payload, sealed inside its JSON under the key ring.

    {"user": "ann", "$sealed": {"key": "k20261121", "value": "<base64>"}}

All sensitive fields of a payload are one sealed value (AES-256-GCM, see `encryption`), bound to the job type:
no field can be moved to another one, to another type, or be mixed with those of another payload. It is not bound
to the job's id: a job has none before it is written, and a requeue carries the payload to a new one. So whoever
may write to the database may give a job the sealed fields of another job of the same type, as they may
rewrite its clear ones.

The key's id is stored next to the value in clear, so that SQL can find what a rotation has to re-encrypt.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from sqlalchemy import Row

from effects.errors import KeyUnavailable, PayloadInvalid, SealInvalid
from effects.keys.encryption import KeyRing
from effects.model.job_type import JobType
from effects.model.payload_codec import SEALED

_MARK = f'"{SEALED}"'


@dataclass(frozen=True, slots=True)
class SealedColumn:
    """A column of sealed bytes, for `effects keys`; packages offer theirs by the entry point `effects.sealed`.

    Args:
        table: its name without the prefix.
        column, id_column: of the sealed bytes, and of the primary key.
        columns: what else `context` needs of the row.
        context: the row's `table`, `row` and `field`, as they were given to `KeyRing.seal`.
    """

    table: str
    column: str
    id_column: str
    columns: tuple[str, ...]
    context: Callable[[Row[Any]], Mapping[str, str]] = field(compare=False)  # statements are kept by the rest


def seal_payload(keys: KeyRing, job_type: JobType[Any], text: str) -> str:
    """Seal the sensitive fields of a payload's JSON; unchanged if its type has none.

    Raises:
        KeyUnavailable: EFFECTS_KEYS holds no key.
    """
    fields = job_type.sensitive
    if not fields:
        return text
    document = msgspec.json.decode(text)
    secret = {name: document.pop(name) for name in fields if name in document}
    document[SEALED] = _seal(keys, job_type.name, msgspec.json.encode(secret))
    return msgspec.json.encode(document).decode()


def open_payload(keys: KeyRing, job_type: str, text: str) -> str:
    """The payload's JSON with every field in clear.

    Raises:
        KeyUnavailable: its key is not in the ring.
        SealInvalid: the value was altered or comes from another job type.
        PayloadInvalid: what is called sealed is in no sealed format, so that no key can open it.
    """
    document = sealed_document(text)
    if document is None:
        return text
    secret = _decoded(_open(keys, job_type, document.pop(SEALED)))
    if not isinstance(secret, dict):
        raise _malformed(job_type)
    document.update(secret)
    return msgspec.json.encode(document).decode()


def reseal_payload(keys: KeyRing, job_type: str, text: str) -> str:
    """The payload's JSON sealed under the first key.

    Raises:
        KeyUnavailable, SealInvalid, PayloadInvalid: as `open_payload`.
    """
    document = sealed_document(text)
    if document is None:
        return text
    document[SEALED] = _seal(keys, job_type, _open(keys, job_type, document[SEALED]))
    return msgspec.json.encode(document).decode()


def sealed_document(text: str) -> dict[str, Any] | None:
    """The payload as a mapping if some of its fields are sealed, else None (found by a text search).

    Raises:
        PayloadInvalid: it is no JSON.
    """
    if _MARK not in text:
        return None
    document = _decoded(text)
    return document if isinstance(document, dict) and SEALED in document else None


def _seal(keys: KeyRing, job_type: str, value: bytes) -> dict[str, str]:
    sealed = keys.seal(value, **_context(job_type))
    return {"key": keys.key_id(sealed), "value": base64.b64encode(sealed).decode()}


def _open(keys: KeyRing, job_type: str, sealed: Any) -> bytes:
    try:
        value = base64.b64decode(sealed["value"], validate=True)
        keys.key_id(value)
    except (KeyError, TypeError, ValueError, SealInvalid):  # binascii.Error is a ValueError
        raise _malformed(job_type) from None
    return keys.open(value, **_context(job_type))


def _malformed(job_type: str) -> PayloadInvalid:
    return PayloadInvalid(f"the sealed fields of a {job_type} payload are not in the sealed format")


def _decoded(text: str | bytes) -> Any:
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):  # msgspec.DecodeError and UnicodeError are ValueErrors
        raise PayloadInvalid("the stored payload is not valid JSON") from None


def _context(job_type: str) -> dict[str, str]:
    return {"table": "jobs", "row": job_type, "field": "payload"}


def store_text(keys: KeyRing, text: str, attempt: str) -> dict[str, Any]:
    """The text as it is stored, sealed if there is a key.

    Args:
        attempt: the row, see `attempt_row`.
    """
    return _sealed(keys, text.encode(), attempt, "error_text") if keys.ids else {"text": text}


def shown_text(keys: KeyRing, stored: str | None, attempt: str) -> str | None:
    """The text of a stored one. What does not open is replaced by the reason, and none stays None."""
    if stored is None:
        return None
    try:
        document = msgspec.json.decode(stored)
        sealed = SEALED in document
        return _opened(keys, document, attempt, "error_text").decode() if sealed else str(document["text"])
    except KeyUnavailable as error:
        return f"[{error}]"
    except Exception:  # a row that anyone may have written
        return "[not in the form of a kept text]"


def store_result(keys: KeyRing, text: str, attempt: str, *, sealed: bool) -> dict[str, Any]:
    """A result's JSON as it is stored: as a text, so that each of its numbers stays what it is.

    Raises:
        KeyUnavailable: it is to be sealed, and EFFECTS_KEYS holds no key.
    """
    return _sealed(keys, text.encode(), attempt, "result") if sealed else {"json": text}


@dataclass(frozen=True, slots=True)
class KeptResult:
    """What a done attempt returned, and why that is not here if it is not."""

    value: Any = None
    missing: str | None = None


def read_result(keys: KeyRing | None, stored: str, attempt: str) -> KeptResult:
    """A result of its stored form.

    Args:
        keys: None opens nothing that is sealed.
    """
    try:
        document = msgspec.json.decode(stored)
        if "missing" in document:
            return KeptResult(missing=str(document["missing"]))
        if SEALED not in document:
            return KeptResult(json.loads(document["json"]))
        if keys is None:
            return KeptResult(missing="it is sealed, and not shown here: `status` and `wait` open it")
        return KeptResult(json.loads(_opened(keys, document, attempt, "result")))
    except KeyUnavailable as error:
        return KeptResult(missing=str(error))
    except Exception:  # a row that anyone may have written
        return KeptResult(missing="it is not in the form of a kept result")


def reseal_text(keys: KeyRing, stored: str, attempt: str, field: str) -> str:
    """The stored form of a text or a result under the first key.

    Args:
        field: the column.

    Raises:
        KeyUnavailable: its key is not in the ring, or the value was altered.
    """
    text = _opened(keys, msgspec.json.decode(stored), attempt, field)
    return msgspec.json.encode(_sealed(keys, text, attempt, field)).decode()


def attempt_row(job_id: int, lease_token: int) -> str:
    """What a sealed text is bound to."""
    return f"{job_id}:{lease_token}"


def _sealed(keys: KeyRing, text: bytes, attempt: str, field: str) -> dict[str, Any]:
    sealed = keys.seal(text, table="job_attempts", row=attempt, field=field)
    return {SEALED: {"key": keys.key_id(sealed), "value": base64.b64encode(sealed).decode()}}


def _opened(keys: KeyRing, document: Any, attempt: str, field: str) -> bytes:
    try:
        value = base64.b64decode(document[SEALED]["value"], validate=True)
    except (KeyError, TypeError, ValueError):
        raise KeyUnavailable("the stored text is not in the sealed format") from None
    return keys.open(value, table="job_attempts", row=attempt, field=field)
