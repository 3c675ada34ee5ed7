"""Endpoints: where events go. Their secrets are stored sealed and shown once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Literal, TypeAlias

import msgspec
from sqlalchemy import Connection, Row

from effects import Effects
from effects.extend.actions import AuditAction, note
from effects.extend.arguments import arguments, optional, printable, require
from effects.extend.jobs import Breaker, app_of, ensure_limit, unblock_limit
from effects.extend.rows import record
from effects.extend.sql import AnySession
from effects.extend.text import repr_without
from effects_webhooks.echoes import shortened
from effects_webhooks.endpoint_values import check_url, seal_headers
from effects_webhooks.errors import EndpointInvalid, no_endpoint
from effects_webhooks.request import EventTypes, check_pattern, patterns_of
from effects_webhooks.retry_rules import PROFILES, Profile, check_overrides, overrides_of
from effects_webhooks.settings import state_of
from effects_webhooks.tables import endpoint_rows as table
from effects_webhooks.tenants import Tenant, tenant_filter
from effects_webhooks.writing import limit_key

Ordering: TypeAlias = Literal["none", "endpoint", "key"]
ORDERINGS: tuple[Ordering, ...] = ("none", "endpoint", "key")
SETTINGS = {"overrides": optional(arguments.mapping), "headers": optional(arguments.mapping)}
_PATTERNS_MAX = 100
TEXT_CHARS_MAX = 1000


def checked_patterns(patterns: Iterable[str], event_types: EventTypes) -> list[str]:
    """
    Raises:
        EndpointInvalid: one has no pattern's form, or takes none of the event types that are declared.
    """
    if isinstance(patterns, str):
        raise EndpointInvalid(f"patterns is a text; give a list, such as [{patterns!r}]")
    require("patterns", patterns, arguments.listed, EndpointInvalid)
    checked = list(dict.fromkeys(check_pattern(pattern) for pattern in patterns))
    for pattern in checked:
        event_types.check_pattern(pattern)
    if not 1 <= len(checked) <= _PATTERNS_MAX:
        raise EndpointInvalid(f"give 1 to {_PATTERNS_MAX} patterns; '*' takes every event")
    return checked


def checked_rules(profile: str, overrides: Mapping[str, str] | None, ordering: str) -> dict[str, Any]:
    require("profile", profile, arguments.one_of(PROFILES), EndpointInvalid)
    require("ordering", ordering, arguments.one_of(ORDERINGS), EndpointInvalid)
    return {"profile": profile, "overrides": check_overrides(overrides or {}), "ordering": ordering}


def check_text(name: str, text: str | None) -> None:
    require(name, text, optional(printable(TEXT_CHARS_MAX, chars_min=0)), EndpointInvalid)


def note_endpoint(
    app: Effects,
    connection: Connection,
    action: AuditAction,
    endpoint_id: str,
    *,
    subject: str | None = None,
    actor: str,
    reason: str | None,
    detail: Mapping[str, Any] | None = None,
) -> None:
    """Note an action on an endpoint that the caller has found to be its tenant's.

    Args:
        subject: what of the endpoint's it was done to, such as a secret; default the endpoint.
    """
    row = table.endpoint(app.store, connection, endpoint_id, None)
    tenant = (row.tenant or None) if row is not None else None
    note(
        app.store, connection, action, subject or endpoint_id, actor=actor, reason=reason, detail=detail, tenant=tenant
    )


CHANGE, REVEAL, _DISABLE, _ENABLE = (
    AuditAction("endpoint", name) for name in ("change", "reveal", "disable", "enable")
)

EndpointStatus: TypeAlias = Literal["active", "disabled"]
STATUSES: tuple[EndpointStatus, ...] = ("active", "disabled")
MAX_IN_FLIGHT = 16  # of all workers together; each begins with `transport.windows.START`
BREAKER = Breaker(failures=10, seconds=60.0)  # in a row; then one probe a minute until one is answered


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint as it is stored, without its secrets and without its headers' values.

    `failing_since` is the first failure since the last success; `failed_messages` are those since then.
    """

    id: str
    url: str
    patterns: tuple[str, ...]
    status: EndpointStatus
    reason: str | None
    description: str | None
    tenant: str | None
    profile: str
    overrides: dict[str, str]
    ordering: Ordering
    has_headers: bool
    key: str | None
    failing_since: datetime | None
    failed_messages: int
    created_at: datetime

    @property
    def address(self) -> str:
        """The URL without what may be a token in path or query: for pages and messages that many see."""
        return shortened(self.url)

    @property
    def name(self) -> str:
        """What people call it."""
        return self.description or self.key or self.address

    def __repr__(self) -> str:
        return repr_without(self, {"url"})


@arguments.checked(EndpointInvalid, endpoint_id=arguments.NAME, **SETTINGS, **arguments.ACTING)
def change_endpoint(
    endpoint_id: str,
    *,
    url: str | None = None,
    patterns: Iterable[str] | None = None,
    profile: Profile | None = None,
    overrides: Mapping[str, str] | None = None,
    ordering: Ordering | None = None,
    headers: Mapping[str, str] | None = None,
    tenant: Tenant = None,
    actor: str = "app",
    reason: str | None = None,
    session: AnySession | None = None,
    effects: Effects | None = None,
) -> None:
    """Change an endpoint; what is None stays. URL, retry rules and headers hold from the next try on, for what
    waits too; patterns and ordering for events from now on.

    Args:
        endpoint_id: of the endpoint: `ep_…`.
        overrides, headers: take the place of all there were; an empty mapping takes them away.
        tenant: the endpoint's tenant; endpoints of others are not found. Default: no tenant. `ANY_TENANT`: any.
        actor, reason: who and why, for the audit log.

    Raises:
        EndpointNotFound: no endpoint has this id.
        EndpointInvalid, KeyUnavailable: as `add_endpoint`.
    """
    app = app_of(effects, session)
    state = state_of(app)
    if url is not None:
        check_url(url, allow_private=state.allow_private)
    rules = checked_rules(
        "default" if profile is None else profile, overrides, "none" if ordering is None else ordering
    )
    row = {
        "id": endpoint_id,
        "url": url,
        "patterns": None if patterns is None else checked_patterns(patterns, state.event_types),
        "profile": profile,
        "overrides": None if overrides is None else rules["overrides"],
        "ordering": ordering,
    }
    sealed = seal_headers(app, endpoint_id, headers) if headers else None
    owner = tenant_filter(tenant)
    with app.writing(session) as connection:
        if not table.change(app.store, connection, row, owner, replace_headers=headers is not None, headers=sealed):
            raise no_endpoint(endpoint_id)
        changed = sorted(
            name for name, value in {**row, "headers": headers}.items() if value is not None and name != "id"
        )
        note_endpoint(app, connection, CHANGE, endpoint_id, actor=actor, reason=reason, detail={"changed": changed})


def list_endpoints(*, tenant: Tenant = None, effects: Effects | None = None) -> list[Endpoint]:
    """List a tenant's endpoints, oldest first.

    Args:
        tenant: whose. Default: those of no tenant. `ANY_TENANT`: all.
        effects: the Effects to use; default the process's.
    """
    app = app_of(effects)
    owner = tenant_filter(tenant)
    with app.store.read() as connection:
        return [_endpoint(row) for row in table.endpoints(app.store, connection, owner)]


@arguments.checked(EndpointInvalid, endpoint_id=arguments.NAME)
def get_endpoint(endpoint_id: str, *, tenant: Tenant = None, effects: Effects | None = None) -> Endpoint:
    """One endpoint.

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
        row = table.endpoint(app.store, connection, endpoint_id, owner)
    if row is None:
        raise no_endpoint(endpoint_id)
    return _endpoint(row)


@arguments.checked(EndpointInvalid, endpoint_id=arguments.NAME, **arguments.ACTING)
def disable_endpoint(
    endpoint_id: str,
    *,
    actor: str = "app",
    reason: str | None = None,
    tenant: Tenant = None,
    session: AnySession | None = None,
    effects: Effects | None = None,
) -> None:
    """Send nothing more to it: new events pass it by, and deliveries that wait end cancelled when they fall due.

    Args:
        endpoint_id: of the endpoint: `ep_…`.
        tenant: the endpoint's tenant; endpoints of others are not found. Default: no tenant. `ANY_TENANT`: any.
        actor, reason: who and why, for the audit log.
        session: the caller's transaction, never committed by us. Without one, our own transaction.
        effects: the Effects to use; default the process's.

    Raises:
        EndpointNotFound: no endpoint has this id.
    """
    check_text("reason", reason)
    app = app_of(effects, session)
    owner = tenant_filter(tenant)
    with app.writing(session) as connection:
        _set_status(app, connection, endpoint_id, owner, "disabled", reason)
        note_endpoint(app, connection, _DISABLE, endpoint_id, actor=actor, reason=reason)


@arguments.checked(EndpointInvalid, endpoint_id=arguments.NAME, **arguments.ACTING)
def enable_endpoint(
    endpoint_id: str,
    *,
    actor: str = "app",
    reason: str | None = None,
    tenant: Tenant = None,
    session: AnySession | None = None,
    effects: Effects | None = None,
) -> None:
    """Resume deliveries at once: clear its failures, close its breaker, end its pause.
    What was cancelled meanwhile stays cancelled: see `recover`.

    Args:
        endpoint_id: of the endpoint: `ep_…`.
        tenant: the endpoint's tenant; endpoints of others are not found. Default: no tenant. `ANY_TENANT`: any.
        actor, reason: who and why, for the audit log.
        session: the caller's transaction, never committed by us. Without one, our own transaction.
        effects: the Effects to use; default the process's.

    Raises:
        EndpointNotFound: no endpoint has this id.
    """
    app = app_of(effects, session)
    owner = tenant_filter(tenant)
    with app.writing(session) as connection:
        _set_status(app, connection, endpoint_id, owner, "active", None)
        table.forget(app.store, connection, endpoint_id)
        ensure_limit(app.store, connection, limit_key(endpoint_id), max_in_flight=MAX_IN_FLIGHT, breaker=BREAKER)
        unblock_limit(app.store, connection, limit_key(endpoint_id))
        note_endpoint(app, connection, _ENABLE, endpoint_id, actor=actor, reason=reason)


def _set_status(
    app: Effects,
    connection: Connection,
    endpoint_id: str,
    owner: str | None,
    status: EndpointStatus,
    reason: str | None,
) -> None:
    if not table.set_status(app.store, connection, endpoint_id, owner, status, reason):
        raise no_endpoint(endpoint_id)


def _endpoint(row: Row[Any]) -> Endpoint:
    return record(
        Endpoint, row, patterns=tuple(patterns_of(row.patterns)), tenant=row.tenant or None,
        overrides=overrides_of(row.overrides), failed_messages=row.failed_messages or 0,
    )  # fmt: skip
