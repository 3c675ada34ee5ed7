"""The text of a download link: signed, for one file, and if wanted for one person, or for so many downloads.

    <run>.<first 16 digits of the file's SHA-256>.<end, seconds since 1970, hexadecimal>.<key id>.<kind>.<signature>

The signature is HMAC-SHA256 under a key of EFFECTS_KEYS; whose key is no longer there is no longer good. The kind is
`o` (open) or `p` (for a person), followed by the id of the row that counts, where downloads are counted. The person
is signed and not written: a link says nothing about anybody.
"""

from __future__ import annotations

import base64
import binascii
import math
import secrets
import time

import msgspec
from sqlalchemy import Connection

from effects import Effects
from effects.extend.arguments import arguments, optional, require
from effects_reports.errors import LinkExpired, LinkInvalid, ReportInvalid
from effects_reports.tables.links import insert_link

LINK_SECONDS = 900.0
LINK_SECONDS_MIN = 0.001
LINK_SECONDS_MAX = 7 * 86_400.0
USES_MAX = 1_000_000
PURPOSE = "report download"
_COUNTED = f"{PURPOSE}, counted"  # a program that cannot count must not take such a link for another
_DIGEST_CHARS = 16
_OPEN, _PERSONAL = "o", "p"


class Link(msgspec.Struct, frozen=True):
    """What a valid link is for. `id`: of the row that counts its downloads, or None."""

    run_id: str
    digest: str  # the beginning of the file's SHA-256
    id: str | None = None


class LinkTerms(msgspec.Struct, frozen=True, kw_only=True):
    """How long a link is good, for how many downloads (None: any number), and for whom (None: whoever has it)."""

    seconds: float = LINK_SECONDS
    uses: int | None = None
    principal: str | None = None

    def check(self, *, where: str = "") -> None:
        """
        Args:
            where: what precedes the name of a term.

        Raises:
            ReportInvalid: names the term and what it may be.
        """
        if self.principal is not None and (not isinstance(self.principal, str) or not self.principal.strip()):
            raise ReportInvalid(
                f"{where}principal is empty or no text; give the person's id, or None for a link that is open to all"
            )
        require(f"{where}seconds", self.seconds, arguments.number(LINK_SECONDS_MIN, LINK_SECONDS_MAX), ReportInvalid)
        require(f"{where}uses", self.uses, optional(arguments.whole(1, USES_MAX)), ReportInvalid)


def write_link(app: Effects, connection: Connection, run_id: str, sha256: str, base_url: str, terms: LinkTerms) -> str:
    """A link to a file, with the row that counts where its uses are limited: one transaction with the caller's.

    Raises:
        KeyUnavailable: EFFECTS_KEYS holds no key to sign with.
    """
    kind, purpose = _OPEN if terms.principal is None else _PERSONAL, PURPOSE
    if terms.uses is not None:
        link_id = secrets.token_hex(8)
        insert_link(app.store, connection, link_id, run_id, terms.uses)
        kind, purpose = f"{kind}{link_id}", _COUNTED
    subject = f"{run_id}.{sha256[:_DIGEST_CHARS]}.{math.ceil(time.time() + terms.seconds):x}"
    key_id = app.keys.sign(b"", purpose=purpose)[0]
    _, signature = app.keys.sign(message(subject, key_id, kind, terms.principal), purpose=purpose)
    return f"{base_url.rstrip('/')}/{subject}.{key_id}.{kind}.{encoded(signature)}"


def read_token(app: Effects, token: str, principal: str | None) -> Link:
    """What a link's last part is for. Asks no database.

    Raises:
        LinkExpired: it was good once.
        LinkInvalid: it never was, or not for this person.
    """
    try:
        run_id, digest, end, key_id, kind, text = token.split(".")
        signature = base64.b64decode(text + "=", altchars=b"-_", validate=True)
        ends_at = int(end, 16)
    except (ValueError, binascii.Error):
        raise LinkInvalid from None
    is_personal, link_id = kind.startswith(_PERSONAL), kind[1:]
    if encoded(signature) != text or (is_personal and not (principal or "").strip()):
        raise LinkInvalid
    signed = message(f"{run_id}.{digest}.{end}", key_id, kind, principal if is_personal else None)
    if not app.keys.is_signed(signed, signature, key_id=key_id, purpose=_COUNTED if link_id else PURPOSE):
        raise LinkInvalid
    if ends_at < time.time():
        raise LinkExpired
    return Link(run_id, digest, link_id or None)


def encoded(signature: bytes) -> str:
    """The signature as a link has it."""
    return base64.urlsafe_b64encode(signature).decode().rstrip("=")


def message(subject: str, key_id: str, kind: str, principal: str | None) -> bytes:
    """What is signed."""
    return f"{subject}.{key_id}.{kind}.{principal or ''}".encode("utf-8", "surrogatepass")
