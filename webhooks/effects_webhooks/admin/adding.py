"""Adding endpoints: once, or as an app declares them on each deploy. Their secrets are stored sealed and shown once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import msgspec
from sqlalchemy import Connection, Row

from effects import Effects, StoreConflict
from effects.extend.actions import AuditAction
from effects.extend.arguments import arguments
from effects.extend.jobs import app_of, ensure_limit
from effects.extend.process import own_logger
from effects.extend.secrets import generate_secret, signing
from effects.extend.sql import AnySession
from effects_webhooks.admin.endpoints import (
    BREAKER,
    CHANGE,
    MAX_IN_FLIGHT,
    SETTINGS,
    Ordering,
    check_text,
    checked_patterns,
    checked_rules,
    note_endpoint,
)
from effects_webhooks.endpoint_values import check_url, has_other_headers, seal_headers, seal_secret
from effects_webhooks.errors import EndpointInvalid
from effects_webhooks.retry_rules import Profile
from effects_webhooks.settings import state_of
from effects_webhooks.tables import endpoint_rows as table
from effects_webhooks.tenants import check_tenant
from effects_webhooks.writing import limit_key, new_id

_ADD = AuditAction("endpoint", "add")
_log = own_logger("effects.webhooks")

EnsureOutcome: TypeAlias = Literal["added", "changed", "unchanged"]


@dataclass(frozen=True, slots=True)
class NewEndpoint:
    """What `add_endpoint` gives back: the only time that the secret is shown."""

    id: str
    url: str = field(repr=False)
    patterns: tuple[str, ...]
    secret: str = field(repr=False)
    same_url: tuple[str, ...] = ()  # ids of the tenant's other endpoints of this URL: events reach it once for each


@dataclass(frozen=True, slots=True)
class EnsuredEndpoint:
    """What `ensure_endpoint` gives back.

    `secret` is there if it was added, and shown only then. `changed` names what was changed.
    """

    id: str
    key: str
    url: str = field(repr=False)
    patterns: tuple[str, ...]
    outcome: EnsureOutcome
    changed: tuple[str, ...] = ()
    same_url: tuple[str, ...] = ()  # as of NewEndpoint
    secret: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class _Draft:
    """An endpoint that is checked and sealed, and not yet written."""

    id: str
    row: dict[str, Any] = field(repr=False)
    patterns: tuple[str, ...]
    secret: str = field(repr=False)
    secret_id: str
    sealed: bytes


@arguments.checked(EndpointInvalid, **SETTINGS, **arguments.ACTING)
def add_endpoint(
    url: str,
    patterns: Iterable[str] = ("*",),
    *,
    secret: str | None = None,
    description: str | None = None,
    tenant: str | None = None,
    profile: Profile = "default",
    overrides: Mapping[str, str] | None = None,
    ordering: Ordering = "none",
    headers: Mapping[str, str] | None = None,
    actor: str = "app",
    reason: str | None = None,
    session: AnySession | None = None,
    effects: Effects | None = None,
) -> NewEndpoint:
    """Add an endpoint with its secret, and cap what is in flight to it at 4 requests.

    Args:
        url: https; at most 2,048 characters, no user name. Loopback, private addresses, http and ports below
            1024 (but 80 and 443) only with EFFECTS_ALLOW_PRIVATE_ADDRESSES. Vetted again at each connect.
        patterns: event types, prefixes such as `order.*`, or `*` for all (the default); at most 100. Where the app
            declares its event types, each takes one of them.
        secret: the partner's own `whsec_…` of 24 to 64 bytes; default a fresh one of 32.
        description: at most 1,000 characters, for people.
        tenant: it gets the events of this tenant only; default those of none.
        profile: which failures are tried again for how long: `default`, `patient`, `spec` or `strict`.
        overrides: a status (`404`) or class (`5xx`) to `full`, `short` or `none`, over the profile.
        ordering: `none`; `endpoint`: one event after the other; `key`: one after the other among those of one
            `ordering_key`. An event that fails holds those behind it until it is delivered or dead.
        headers: to send with each request, at most 20; stored sealed, and never shown again.
        actor, reason: who and why, for the audit log.
        session: as for `deliver_webhook`.

    Raises:
        EndpointInvalid: the URL, a pattern, a header, the ordering or a retry rule cannot be.
        SecretInvalid: the secret is malformed.
        KeyUnavailable: EFFECTS_KEYS is not set, so that the secret could not be sealed.
    """
    app = app_of(effects, session)
    draft = _draft(
        app, url, patterns, secret=secret, description=description, tenant=tenant, profile=profile, overrides=overrides,
        ordering=ordering, headers=headers,
    )  # fmt: skip
    with app.writing(session) as connection:
        _insert(app, connection, draft, actor=actor, reason=reason)
        return NewEndpoint(draft.id, url, draft.patterns, draft.secret, _same_url(app, connection, draft))


@arguments.checked(EndpointInvalid, key=arguments.NAME, **SETTINGS, **arguments.ACTING)
def ensure_endpoint(
    key: str,
    url: str,
    patterns: Iterable[str] = ("*",),
    *,
    secret: str | None = None,
    description: str | None = None,
    tenant: str | None = None,
    profile: Profile | None = None,
    overrides: Mapping[str, str] | None = None,
    ordering: Ordering | None = None,
    headers: Mapping[str, str] | None = None,
    actor: str = "app",
    reason: str | None = None,
    session: AnySession | None = None,
    effects: Effects | None = None,
) -> EnsuredEndpoint:
    """Have one endpoint of this key, as an app declares it on each deploy: add it, or change what differs.

    Of two calls at the same time one adds it, and the other waits for that commit.

    Args:
        key: the app's own name for it, unique within the tenant; 1 to 255 printable characters.
        url, patterns: of the endpoint from now on.
        secret, description: as for `add_endpoint`, when it is added; they do not change one that is there.
        profile, overrides, ordering, headers: as for `add_endpoint`; what is None stays as it is.
        tenant: as for `add_endpoint`. Endpoints of other tenants may have the same key.
        actor, reason: who and why, for the audit log.
        session: as for `deliver_webhook`.

    Returns:
        What it is, and `secret` if it was added: the only time that it is shown. A disabled endpoint stays disabled.

    Raises:
        EndpointInvalid, SecretInvalid, KeyUnavailable: as `add_endpoint`.
    """
    app = app_of(effects, session)
    draft = _draft(
        app, url, patterns, key=key, secret=secret, description=description, tenant=tenant,
        profile=profile or "default", overrides=overrides, ordering=ordering or "none", headers=headers,
    )  # fmt: skip
    declared = {"url": url, "profile": profile, "ordering": ordering}
    with app.writing(session) as connection:
        if _insert(app, connection, draft, actor=actor, reason=reason):
            same_url = _same_url(app, connection, draft)
            return EnsuredEndpoint(draft.id, key, url, draft.patterns, "added", same_url=same_url, secret=draft.secret)
        stored = table.lock_key(app.store, connection, tenant or "", key)
        if stored is None:  # committed after the caller's snapshot
            raise StoreConflict(f"the endpoint {key!r} was added by another transaction: repeat in a new one")
        changes: dict[str, Any] = {name: value for name, value in declared.items() if value is not None}
        changes["patterns"] = list(draft.patterns)
        if overrides is not None:
            changes["overrides"] = draft.row["overrides"]
        changed = _write_changes(app, connection, stored, changes, headers, actor=actor, reason=reason)
        draft = replace(draft, id=stored.id)
        outcome: EnsureOutcome = "changed" if changed else "unchanged"
        return EnsuredEndpoint(
            stored.id, key, url, draft.patterns, outcome, changed, same_url=_same_url(app, connection, draft)
        )


def _draft(
    app: Effects,
    url: str,
    patterns: Iterable[str],
    *,
    key: str | None = None,
    secret: str | None,
    description: str | None,
    tenant: str | None,
    profile: str,
    overrides: Mapping[str, str] | None,
    ordering: str,
    headers: Mapping[str, str] | None,
) -> _Draft:
    """Check everything, and seal what is secret."""
    state = state_of(app)
    check_url(url, allow_private=state.allow_private)
    checked = checked_patterns(patterns, state.event_types)
    check_text("description", description)
    if tenant is not None:
        check_tenant(tenant)
    rules = checked_rules(profile, overrides, ordering)
    plain = generate_secret() if secret is None else secret
    endpoint_id, secret_id = new_id("ep"), new_id("sec")
    row = {
        "id": endpoint_id, "tenant": tenant or "", "url": url, "patterns": checked, "description": description, **rules,
        "headers": seal_headers(app, endpoint_id, headers) if headers else None, "key": key,
    }  # fmt: skip
    sealed = seal_secret(app, endpoint_id, secret_id, signing.parse_secret(plain))
    return _Draft(endpoint_id, row, tuple(checked), plain, secret_id, sealed)


def _insert(app: Effects, connection: Connection, draft: _Draft, *, actor: str, reason: str | None) -> bool:
    """Write the endpoint with its secret and its limit; False if its key is taken."""
    if not table.insert_endpoint(app.store, connection, dict(draft.row)):
        return False
    table.insert_secret(app.store, connection, secret_id=draft.secret_id, endpoint_id=draft.id, sealed=draft.sealed)
    ensure_limit(app.store, connection, limit_key(draft.id), max_in_flight=MAX_IN_FLIGHT, breaker=BREAKER)
    note_endpoint(app, connection, _ADD, draft.id, actor=actor, reason=reason, detail={"patterns": draft.patterns})
    return True


def _write_changes(
    app: Effects,
    connection: Connection,
    stored: Row[Any],
    declared: Mapping[str, Any],
    headers: Mapping[str, str] | None,
    *,
    actor: str,
    reason: str | None,
) -> tuple[str, ...]:
    """Change what differs; its names."""
    decoded = {"patterns": msgspec.json.decode(stored.patterns), "overrides": msgspec.json.decode(stored.overrides)}
    changes = {name: value for name, value in declared.items() if decoded.get(name, getattr(stored, name)) != value}
    replaces_headers = headers is not None and has_other_headers(app, stored.id, stored.headers, headers)
    changed = (*sorted(changes), *(["headers"] if replaces_headers else []))
    if changed:
        table.change(
            app.store, connection, {"id": stored.id, **changes}, None, replace_headers=replaces_headers,
            headers=seal_headers(app, stored.id, headers) if replaces_headers and headers else None,
        )  # fmt: skip
        detail = {"changed": list(changed)}
        note_endpoint(app, connection, CHANGE, stored.id, actor=actor, reason=reason, detail=detail)
    return changed


def _same_url(app: Effects, connection: Connection, draft: _Draft) -> tuple[str, ...]:
    """The tenant's other endpoints of this URL, with a warning: it gets each event once for each of them."""
    others = table.same_url(app.store, connection, draft.row["tenant"], draft.row["url"], draft.id)
    if others:
        _log.warning("webhook.same_url", extra={"endpoint": draft.id, "others": ",".join(others)})
    return tuple(others)
