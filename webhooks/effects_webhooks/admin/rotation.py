"""Replacing an endpoint's secret: both sign for a while, so that no delivery fails meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

import msgspec
from sqlalchemy import Connection

from effects import Effects
from effects.extend.actions import AuditAction
from effects.extend.arguments import DAY_SECONDS, arguments
from effects.extend.jobs import app_of
from effects.extend.process import own_logger
from effects.extend.secrets import generate_secret, signing
from effects.extend.sql import AnySession
from effects.extend.text import moment, moment_or_none
from effects_webhooks.admin.endpoints import note_endpoint
from effects_webhooks.endpoint_values import seal_secret
from effects_webhooks.errors import EndpointInvalid, EndpointNotFound, no_endpoint
from effects_webhooks.tables import endpoint_rows as table
from effects_webhooks.tenants import Tenant, tenant_filter
from effects_webhooks.writing import new_id

OVERLAP_SECONDS = DAY_SECONDS
_OVERLAP_MAX_SECONDS = 7 * DAY_SECONDS
_SIGNING_MAX = 3  # secrets at once: each makes the header longer
_ROTATE, _EXPIRE = AuditAction("secret", "rotate"), AuditAction("secret", "expire")
_log = own_logger("effects.webhooks")


@dataclass(frozen=True, slots=True)
class NewSecret:
    """What `rotate_secret` gives back: the only time that the secret is shown."""

    id: str
    secret: str = field(repr=False)


class SecretInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A secret without its value. It signs until `expires_at`; None is until it is replaced."""

    id: str
    created_at: datetime
    expires_at: datetime | None
    signs: bool


@arguments.checked(
    EndpointInvalid,
    endpoint_id=arguments.NAME,
    overlap_seconds=arguments.number(0, _OVERLAP_MAX_SECONDS),
    **arguments.ACTING,
)
def rotate_secret(
    endpoint_id: str,
    *,
    secret: str | None = None,
    overlap_seconds: float = OVERLAP_SECONDS,
    actor: str = "app",
    reason: str | None = None,
    tenant: Tenant = None,
    session: AnySession | None = None,
    effects: Effects | None = None,
) -> NewSecret:
    """Give an endpoint a new secret. It signs from the next try on, first in the header; those before it sign for
    `overlap_seconds` more, so that the partner may change to the new one at any time until then.

    Args:
        endpoint_id: of the endpoint: `ep_…`.
        secret: the partner's own `whsec_…` of 24 to 64 bytes; default a fresh one of 32.
        overlap_seconds: 0 to 7 days; default 24 h. 0 where the old one has leaked.
        tenant: the endpoint's tenant; endpoints of others are not found. Default: no tenant. `ANY_TENANT`: any.
        actor, reason: who and why, for the audit log.
        session: as for `deliver_webhook`.

    A crash before the commit changes nothing. Two rotations at once are made one after the other.

    Raises:
        EndpointNotFound: no endpoint has this id.
        EndpointInvalid: the overlap is out of its range, or more than 3 secrets would sign.
        SecretInvalid: the secret is malformed.
        KeyUnavailable: EFFECTS_KEYS is not set.
    """
    app = app_of(effects, session)
    owner = tenant_filter(tenant)
    plain = generate_secret() if secret is None else secret
    key, secret_id = signing.parse_secret(plain), new_id("sec")
    sealed = seal_secret(app, endpoint_id, secret_id, key)
    with app.writing(session) as connection:
        if not table.lock(app.store, connection, endpoint_id, owner):
            raise no_endpoint(endpoint_id)
        if overlap_seconds and len(_signing(app, connection, endpoint_id, owner)) >= _SIGNING_MAX:
            raise EndpointInvalid(f"{_SIGNING_MAX} secrets sign already; expire one of them first")
        table.expire_secrets(app.store, connection, endpoint_id, overlap_seconds)
        table.insert_secret(app.store, connection, secret_id=secret_id, endpoint_id=endpoint_id, sealed=sealed)
        detail = {"endpoint": endpoint_id, "overlap_seconds": overlap_seconds}
        note_endpoint(
            app, connection, _ROTATE, endpoint_id, subject=secret_id, actor=actor, reason=reason, detail=detail
        )
    _log.info("webhook.secret_rotated", extra={"endpoint": endpoint_id, "secret": secret_id})
    return NewSecret(secret_id, plain)


@arguments.checked(EndpointInvalid, endpoint_id=arguments.NAME)
def list_secrets(endpoint_id: str, *, tenant: Tenant = None, effects: Effects | None = None) -> list[SecretInfo]:
    """An endpoint's secrets, newest first; never their values.

    Args:
        endpoint_id: of the endpoint: `ep_…`.
        tenant: the endpoint's tenant; endpoints of others are not found. Default: no tenant. `ANY_TENANT`: any.
        effects: the Effects to use; default the process's.

    Raises:
        EndpointNotFound: no endpoint has this id.
    """
    app = app_of(effects)
    owner = tenant_filter(tenant)
    with app.store.read() as connection:
        rows = table.secrets(app.store, connection, endpoint_id, owner)
        if not rows and table.endpoint(app.store, connection, endpoint_id, owner) is None:
            raise no_endpoint(endpoint_id)
    return [
        SecretInfo(
            id=row.id,
            created_at=moment(row.created_at),
            expires_at=moment_or_none(row.expires_at),
            signs=not row.expired,
        )
        for row in rows
    ]


@arguments.checked(EndpointInvalid, secret_id=arguments.NAME, **arguments.ACTING)
def expire_secret(
    secret_id: str,
    *,
    actor: str = "app",
    reason: str | None = None,
    tenant: Tenant = None,
    session: AnySession | None = None,
    effects: Effects | None = None,
) -> None:
    """End a secret now, before its overlap does. Those that are left sign on.

    Args:
        secret_id: of the secret, as `list_secrets` has it.
        tenant: the secret's tenant; secrets of others are not found. Default: no tenant. `ANY_TENANT`: any.
        actor, reason: who and why, for the audit log.
        session: the caller's transaction, never committed by us. Without one, our own transaction.
        effects: the Effects to use; default the process's.

    Raises:
        EndpointNotFound: there is no such secret.
        EndpointInvalid: it has ended already, or all others end by themselves, so that none would sign: rotate first.
    """
    app = app_of(effects, session)
    owner = tenant_filter(tenant)
    with app.writing(session) as connection:
        endpoint_id = table.secret_owner(app.store, connection, secret_id, owner)
        if endpoint_id is None or not table.lock(app.store, connection, endpoint_id, owner):
            raise EndpointNotFound(f"there is no secret {secret_id!r}")
        signing = _signing(app, connection, endpoint_id, owner)
        if secret_id not in signing:
            raise EndpointInvalid(f"{secret_id} has ended already")
        if len(signing) == 1:
            raise EndpointInvalid(f"{secret_id} is the only secret that signs; rotate instead, with an overlap of 0")
        if signing[secret_id] is None and list(signing.values()).count(None) == 1:
            raise EndpointInvalid(
                f"{secret_id} is the only secret without an end, and none would sign once the others have ended; "
                "rotate first and then expire it"
            )
        table.expire_secret(app.store, connection, secret_id)
        note_endpoint(
            app, connection, _EXPIRE, endpoint_id, subject=secret_id, actor=actor, reason=reason,
            detail={"endpoint": endpoint_id},
        )  # fmt: skip
    _log.info("webhook.secret_expired", extra={"endpoint": endpoint_id, "secret": secret_id})


def _signing(app: Effects, connection: Connection, endpoint_id: str, owner: str | None) -> dict[str, float | None]:
    """The secrets that sign now, and when each of them ends."""
    rows = table.secrets(app.store, connection, endpoint_id, owner)
    return {row.id: row.expires_at for row in rows if not row.expired}
