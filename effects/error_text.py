"""The text of a handler's exception, kept where the app asks for it: it may be personal.

{"text": "card 4111 was declined"}          without EFFECTS_KEYS
{"$sealed": {"key": "k1", "value": "…"}}    with them, bound to the attempt
"""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from effects.errors import KeyUnavailable
from effects.model.payload_codec import SEALED
from effects.secrets.keys import KeyRing


def store_text(keys: KeyRing, text: str, attempt: str) -> dict[str, Any]:
    """The text as it is stored, sealed if there is a key.

    Args:
        attempt: the row, see `attempt_row`.
    """
    return _sealed(keys, text.encode(), attempt) if keys.ids else {"text": text}


def shown_text(keys: KeyRing, stored: str | None, attempt: str) -> str | None:
    """The text of a stored one. What does not open is replaced by the reason, and none stays None."""
    if stored is None:
        return None
    try:
        document = msgspec.json.decode(stored)
        return _opened(keys, document, attempt).decode() if SEALED in document else str(document["text"])
    except KeyUnavailable as error:
        return f"[{error}]"
    except Exception:  # a row that anyone may have written
        return "[not in the form of a kept text]"


def reseal_text(keys: KeyRing, stored: str, attempt: str) -> str:
    """The stored form under the first key.

    Raises:
        KeyUnavailable: its key is not in the ring, or the value was altered.
    """
    text = _opened(keys, msgspec.json.decode(stored), attempt)
    return msgspec.json.encode(_sealed(keys, text, attempt)).decode()


def attempt_row(job_id: int, lease_token: int) -> str:
    """What a sealed text is bound to."""
    return f"{job_id}:{lease_token}"


def _sealed(keys: KeyRing, text: bytes, attempt: str) -> dict[str, Any]:
    sealed = keys.seal(text, table="job_attempts", row=attempt, field="error_text")
    return {SEALED: {"key": keys.key_id(sealed), "value": base64.b64encode(sealed).decode()}}


def _opened(keys: KeyRing, document: Any, attempt: str) -> bytes:
    try:
        value = base64.b64decode(document[SEALED]["value"], validate=True)
    except (KeyError, TypeError, ValueError):
        raise KeyUnavailable("the stored text is not in the sealed format") from None
    return keys.open(value, table="job_attempts", row=attempt, field="error_text")
