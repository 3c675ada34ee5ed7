"""Endpoints: where events go. Their secrets are stored sealed and shown once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

import msgspec
from sqlalchemy import Row

from effects.app import AnySession, Effects, default
from effects.job import KEY_CHARS_MAX
from effects.sealing import SealedColumn
from effects_webhooks.errors import EndpointInvalid, EndpointNotFound
from effects_webhooks.event import check_pattern
from effects_webhooks.guard import check_url
from effects_webhooks.identifiers import new_id
from effects_webhooks.signing import generate_secret, parse_secret
from effects_webhooks.tables import endpoints as table

EndpointStatus: TypeAlias = Literal["active", "disabled"]
MAX_IN_FLIGHT = 4
PATTERNS_MAX = 100
TEXT_CHARS_MAX = 1000


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint as it is stored, without its secrets."""

    id: str
    url: str
    patterns: tuple[str, ...]
    status: EndpointStatus
    reason: str | None
    description: str | None
    tenant: str | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class NewEndpoint:
    """What `add_endpoint` gives back: the only time that the secret is shown."""

    id: str
    url: str
    patterns: tuple[str, ...]
    secret: str = field(repr=False)


def add_endpoint(
    url: str,
    patterns: Iterable[str] = ("*",),
    *,
    secret: str | None = None,
    description: str | None = None,
    tenant: str | None = None,
    session: AnySession | None = None,
    effects: Effects | None = None,
) -> NewEndpoint:
    """Add an endpoint with its secret, and cap what is in flight to it at 4 requests.

    Args:
        url: https; at most 2,048 characters, no user name. Loopback, private addresses, http and ports below
            1024 (but 80 and 443) only with EFFECTS_ALLOW_PRIVATE_ADDRESSES. Vetted again at each connect.
        patterns: event types, prefixes such as `order.*`, or `*` for all (the default); at most 100.
        secret: the partner's own `whsec_…` of 24 to 64 bytes; default a fresh one of 32.
        description: at most 1,000 characters, for people.
        tenant: it gets the events of this tenant only; default those of none.
        session: as for `deliver_webhook`.

    Raises:
        EndpointInvalid: the URL or a pattern cannot be.
        SecretInvalid: the secret is malformed.
        KeyUnavailable: EFFECTS_KEYS is not set, so that the secret could not be sealed.
    """
    app = effects or default()
    check_url(url, allow_private=app.settings.allow_private_addresses)
    wanted = _patterns(patterns)
    _check_texts(description, tenant)
    plain = generate_secret() if secret is None else secret
    key = parse_secret(plain)
    endpoint_id, secret_id = new_id("ep"), new_id("sec")
    sealed = app.keys.seal(key, **_context(endpoint_id, secret_id))
    row = {
        "id": endpoint_id, "tenant": tenant or "", "url": url, "patterns": wanted, "description": description,
    }  # fmt: skip
    with app.writing(session) as connection:
        table.insert_endpoint(app.store, connection, row)
        table.insert_secret(app.store, connection, secret_id=secret_id, endpoint_id=endpoint_id, sealed=sealed)
        table.insert_limit(app.store, connection, limit_key(endpoint_id), MAX_IN_FLIGHT)
    return NewEndpoint(endpoint_id, url, tuple(wanted), plain)


def list_endpoints(*, tenant: str | None = None, effects: Effects | None = None) -> list[Endpoint]:
    """All endpoints, or a tenant's, oldest first."""
    app = effects or default()
    with app.store.read() as connection:
        return [_endpoint(row) for row in table.endpoints(app.store, connection, tenant)]


def get_endpoint(endpoint_id: str, *, effects: Effects | None = None) -> Endpoint:
    """One endpoint.

    Raises:
        EndpointNotFound: there is none of this id.
    """
    app = effects or default()
    with app.store.read() as connection:
        row = table.endpoint(app.store, connection, endpoint_id)
    if row is None:
        raise EndpointNotFound(f"there is no endpoint {endpoint_id!r}")
    return _endpoint(row)


def disable_endpoint(
    endpoint_id: str,
    *,
    reason: str | None = None,
    session: AnySession | None = None,
    effects: Effects | None = None,
) -> None:
    """Send nothing more to it: new events pass it by, and deliveries that wait end cancelled when they fall due.

    Raises:
        EndpointNotFound: there is none of this id.
    """
    _check_texts(reason, None)
    _set_status(endpoint_id, "disabled", reason, session, effects)


def enable_endpoint(endpoint_id: str, *, session: AnySession | None = None, effects: Effects | None = None) -> None:
    """Send to it again. What was cancelled meanwhile stays cancelled.

    Raises:
        EndpointNotFound: there is none of this id.
    """
    _set_status(endpoint_id, "active", None, session, effects)


def limit_key(endpoint_id: str) -> str:
    """The key under which an endpoint's deliveries share their cap and their pauses."""
    return f"webhook:{endpoint_id}"


def open_secret(app: Effects, endpoint_id: str, secret_id: str, sealed: bytes) -> bytes:
    """The signing key of a stored secret.

    Raises:
        KeyUnavailable: its key is not in EFFECTS_KEYS, or the row was altered.
    """
    return app.keys.open(sealed, **_context(endpoint_id, secret_id))


def sealed_columns() -> list[SealedColumn]:
    """The entry point `effects.sealed`: what `effects keys` counts and rotates."""
    return [
        SealedColumn(
            table="webhook_secrets",
            column="sealed",
            id_column="id",
            columns=("endpoint_id",),
            context=_context_of,
        )
    ]


def _context_of(row: Row[Any]) -> dict[str, str]:
    return _context(row.endpoint_id, row.id)


def _context(endpoint_id: str, secret_id: str) -> dict[str, str]:
    # Both ids: a secret's row that is pointed at another endpoint must not open either.
    return {"table": "webhook_secrets", "row": f"{endpoint_id}/{secret_id}", "field": "sealed"}


def _patterns(patterns: Iterable[str]) -> list[str]:
    if isinstance(patterns, str):
        raise EndpointInvalid(f"patterns is a text; give a list, such as [{patterns!r}]")
    wanted = list(dict.fromkeys(check_pattern(pattern) for pattern in patterns))
    if not 1 <= len(wanted) <= PATTERNS_MAX:
        raise EndpointInvalid(f"give 1 to {PATTERNS_MAX} patterns; '*' takes every event")
    return wanted


def _check_texts(text: str | None, tenant: str | None) -> None:
    if text is not None and (len(text) > TEXT_CHARS_MAX or not text.isprintable()):
        raise EndpointInvalid(f"a description or reason has at most {TEXT_CHARS_MAX} printable characters")
    if tenant is not None and not (0 < len(tenant) <= KEY_CHARS_MAX and tenant.isprintable()):
        raise EndpointInvalid(f"tenant must have 1 to {KEY_CHARS_MAX} printable characters")


def _set_status(
    endpoint_id: str,
    status: EndpointStatus,
    reason: str | None,
    session: AnySession | None,
    effects: Effects | None,
) -> None:
    app = effects or default()
    with app.writing(session) as connection:
        if not table.set_status(app.store, connection, endpoint_id, status, reason):
            raise EndpointNotFound(f"there is no endpoint {endpoint_id!r}")


def _endpoint(row: Row[Any]) -> Endpoint:
    return Endpoint(
        id=row.id,
        url=row.url,
        patterns=tuple(msgspec.json.decode(row.patterns, type=list[str])),
        status=row.status,
        reason=row.reason,
        description=row.description,
        tenant=row.tenant or None,
        created_at=datetime.fromtimestamp(row.created_at, UTC),
    )
