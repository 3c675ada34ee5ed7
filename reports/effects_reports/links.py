"""Download links: signed, short-lived, for one file, and if wanted for one person.

    <run>.<first 16 digits of the file's SHA-256>.<end, seconds since 1970, hexadecimal>.<key id>.<o or p>.<signature>

The signature is HMAC-SHA256 under a key of EFFECTS_KEYS; whose key is no longer there is no longer good. The person
is signed and not written: a link says nothing about anybody.
"""

from __future__ import annotations

import base64
import binascii
import math
import time

import msgspec

from effects import Effects
from effects.extend import app_of
from effects_reports.errors import LinkExpired, LinkInvalid
from effects_reports.results import ready_status

LINK_SECONDS = 900.0
LINK_SECONDS_MAX = 7 * 86_400.0
_PURPOSE = "report download"
_DIGEST_CHARS = 16
_OPEN, _PERSONAL = "o", "p"


class Link(msgspec.Struct, frozen=True):
    """What a valid link is for."""

    run_id: str
    digest: str  # the beginning of the file's SHA-256


def download_url(
    run_id: str,
    base_url: str,
    *,
    seconds: float = LINK_SECONDS,
    principal: str | None = None,
    effects: Effects | None = None,
) -> str:
    """A link to a run's file, as `download_app` serves it.

    Args:
        run_id: of the run, as its receipt has it.
        base_url: where that app is mounted: `https://shop.example/downloads`.
        seconds: how long it is good for, by this host's clock. Default 15 minutes, at most 7 days.
        principal: who alone may use it, in the app's own words: what the `principal` of `download_app` gives.
        effects: the Effects to use; default the process's.

    Raises:
        ReportNotFound, ReportStateError: there is no such file now.
        KeyUnavailable: EFFECTS_KEYS holds no key to sign with.
        ValueError: `seconds` is not above 0, or above 7 days; or `principal` is empty, which would be everybody who is
            not signed in.
    """
    if principal is not None and (not isinstance(principal, str) or not principal.strip()):
        raise ValueError("principal is empty or no text; give the person's id, or None for a link that is open to all")
    if not 0 < seconds <= LINK_SECONDS_MAX:
        raise ValueError(f"seconds is {seconds:g}; give a number above 0, at most {LINK_SECONDS_MAX:,.0f}")
    app = app_of(effects)
    digest = str(ready_status(run_id, effects=app).sha256)[:_DIGEST_CHARS]
    kind = _OPEN if principal is None else _PERSONAL
    said = f"{run_id}.{digest}.{math.ceil(time.time() + seconds):x}"
    key_id = app.keys.sign(b"", purpose=_PURPOSE)[0]
    _, signature = app.keys.sign(_message(said, key_id, kind, principal), purpose=_PURPOSE)
    return f"{base_url.rstrip('/')}/{said}.{key_id}.{kind}.{_encoded(signature)}"


def read_link(token: str, principal: str | None, *, effects: Effects | None = None) -> Link:
    """What a link's last part is for. Asks no database.

    Raises:
        LinkExpired: it was good once.
        LinkInvalid: it never was, or not for this person.
    """
    app = app_of(effects)
    try:
        run_id, digest, end, key_id, kind, encoded = token.split(".")
        signature = base64.b64decode(encoded + "=", altchars=b"-_", validate=True)
        ends_at = int(end, 16)
    except (ValueError, binascii.Error):
        raise LinkInvalid from None
    if _encoded(signature) != encoded or (kind == _PERSONAL and not (principal or "").strip()):
        raise LinkInvalid
    message = _message(f"{run_id}.{digest}.{end}", key_id, kind, principal if kind == _PERSONAL else None)
    if not app.keys.is_signed(message, signature, key_id=key_id, purpose=_PURPOSE):
        raise LinkInvalid
    if ends_at < time.time():
        raise LinkExpired
    return Link(run_id, digest)


def _encoded(signature: bytes) -> str:
    return base64.urlsafe_b64encode(signature).decode().rstrip("=")


def _message(said: str, key_id: str, kind: str, principal: str | None) -> bytes:
    return f"{said}.{key_id}.{kind}.{principal or ''}".encode("utf-8", "surrogatepass")
