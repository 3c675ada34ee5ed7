"""Sealed values: signing keys and partners' own headers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Row

from effects import Effects
from effects.extend import SealedColumn
from effects_webhooks.headers import check_headers, pack


def seal_secret(app: Effects, endpoint_id: str, secret_id: str, key: bytes) -> bytes:
    """A signing key as it is stored.

    Raises:
        KeyUnavailable: EFFECTS_KEYS is not set.
    """
    return app.keys.seal(key, **_context(endpoint_id, secret_id))


def open_secret(app: Effects, endpoint_id: str, secret_id: str, sealed: bytes) -> bytes:
    """The signing key of a stored secret.

    Raises:
        KeyUnavailable: its key is not in EFFECTS_KEYS.
        SealInvalid: the row was altered.
    """
    return app.keys.open(sealed, **_context(endpoint_id, secret_id))


def open_headers(app: Effects, endpoint_id: str, sealed: bytes) -> bytes:
    """The partner's own headers, packed.

    Raises:
        KeyUnavailable, SealInvalid: as `open_secret`.
    """
    return app.keys.open(bytes(sealed), **_headers_context(endpoint_id))


def seal_headers(app: Effects, endpoint_id: str, headers: Mapping[str, str]) -> bytes:
    """A partner's own headers as they are stored.

    Raises:
        EndpointInvalid: one cannot be. KeyUnavailable: as `seal_secret`.
    """
    packed = pack(check_headers(headers))
    return app.keys.seal(packed, **_headers_context(endpoint_id))


def has_other_headers(app: Effects, endpoint_id: str, sealed: bytes | None, headers: Mapping[str, str]) -> bool:
    """Whether these headers are other ones than those stored.

    Raises:
        EndpointInvalid: one cannot be. KeyUnavailable, SealInvalid: as `open_secret`.
    """
    stored = open_headers(app, endpoint_id, sealed) if sealed is not None else None
    return stored != (pack(check_headers(headers)) if headers else None)


def _headers_context(endpoint_id: str) -> dict[str, str]:
    return {"table": "webhook_endpoints", "row": endpoint_id, "field": "headers"}


def sealed_columns() -> list[SealedColumn]:
    """The entry point `effects.sealed`: what `effects keys` counts and rotates."""
    return [
        SealedColumn(
            table="webhook_endpoints",
            column="headers",
            id_column="id",
            columns=(),
            context=lambda row: _headers_context(row.id),
        ),
        SealedColumn(
            table="webhook_secrets",
            column="sealed",
            id_column="id",
            columns=("endpoint_id",),
            context=_context_of,
        ),
    ]


def _context_of(row: Row[Any]) -> dict[str, str]:
    return _context(row.endpoint_id, row.id)


def _context(endpoint_id: str, secret_id: str) -> dict[str, str]:
    # Both ids: a secret's row that is pointed at another endpoint must not open either.
    return {"table": "webhook_secrets", "row": f"{endpoint_id}/{secret_id}", "field": "sealed"}
