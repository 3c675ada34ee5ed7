"""Endpoints: where events go. Their secrets are stored sealed and shown once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

import msgspec
from sqlalchemy import Row

from effects.app import AnySession, Effects, default
from effects.job import KEY_CHARS_MAX
from effects.limits import Breaker
from effects.signing import generate_secret, parse_secret
from effects.store import limits
from effects_webhooks.budgets import PROFILES, Profile, check_overrides
from effects_webhooks.errors import EndpointInvalid, EndpointNotFound
from effects_webhooks.event import check_pattern
from effects_webhooks.guard import check_url, opened
from effects_webhooks.identifiers import new_id
from effects_webhooks.sealed import seal_headers, seal_secret
from effects_webhooks.tables import endpoints as table
from effects_webhooks.tables import health

EndpointStatus: TypeAlias = Literal["active", "disabled"]
Ordering: TypeAlias = Literal["none", "endpoint", "key"]
ORDERINGS: tuple[Ordering, ...] = ("none", "endpoint", "key")
MAX_IN_FLIGHT = 4
BREAKER = Breaker(failures=10, seconds=60.0)  # in a row; then one probe a minute until one is answered
PATTERNS_MAX = 100
TEXT_CHARS_MAX = 1000


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
    failing_since: datetime | None
    failed_messages: int
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
    profile: Profile = "default",
    overrides: Mapping[str, str] | None = None,
    ordering: Ordering = "none",
    headers: Mapping[str, str] | None = None,
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
        profile: which failures are tried again for how long: `default`, `patient`, `spec` or `strict`.
        overrides: a status (`404`) or class (`5xx`) to `full`, `short` or `none`, over the profile.
        ordering: `none`; `endpoint`: one event after the other; `key`: one after the other among those of one
            `ordering_key`. An event that fails holds those behind it until it is delivered or dead.
        headers: to send with each request, at most 20; stored sealed, and never shown again.
        session: as for `deliver_webhook`.

    Raises:
        EndpointInvalid: the URL, a pattern, a header, the ordering or a retry rule cannot be.
        SecretInvalid: the secret is malformed.
        KeyUnavailable: EFFECTS_KEYS is not set, so that the secret could not be sealed.
    """
    app = effects or default()
    check_url(url, allow_private=opened(app))
    wanted = _patterns(patterns)
    _check_texts(description, tenant)
    rules = _rules(profile, overrides, ordering)
    plain = generate_secret() if secret is None else secret
    key = parse_secret(plain)
    endpoint_id, secret_id = new_id("ep"), new_id("sec")
    sealed = seal_secret(app, endpoint_id, secret_id, key)
    row = {
        "id": endpoint_id, "tenant": tenant or "", "url": url, "patterns": wanted, "description": description, **rules,
        "headers": seal_headers(app, endpoint_id, headers) if headers else None,
    }  # fmt: skip
    with app.writing(session) as connection:
        table.insert_endpoint(app.store, connection, row)
        table.insert_secret(app.store, connection, secret_id=secret_id, endpoint_id=endpoint_id, sealed=sealed)
        limits.ensure(app.store, connection, limit_key(endpoint_id), max_in_flight=MAX_IN_FLIGHT, breaker=BREAKER)
    return NewEndpoint(endpoint_id, url, tuple(wanted), plain)


def change_endpoint(
    endpoint_id: str,
    *,
    url: str | None = None,
    patterns: Iterable[str] | None = None,
    profile: Profile | None = None,
    overrides: Mapping[str, str] | None = None,
    ordering: Ordering | None = None,
    headers: Mapping[str, str] | None = None,
    session: AnySession | None = None,
    effects: Effects | None = None,
) -> None:
    """Change an endpoint; what is None stays. URL, retry rules and headers hold from the next try on, for what
    waits too; patterns and ordering for events from now on.

    Args:
        overrides, headers: take the place of all there were; an empty mapping takes them away.

    Raises:
        EndpointNotFound: there is none of this id.
        EndpointInvalid, KeyUnavailable: as `add_endpoint`.
    """
    app = effects or default()
    if url is not None:
        check_url(url, allow_private=opened(app))
    rules = _rules(profile or "default", overrides, ordering or "none")
    row = {
        "id": endpoint_id,
        "url": url,
        "patterns": None if patterns is None else _patterns(patterns),
        "profile": profile,
        "overrides": None if overrides is None else rules["overrides"],
        "ordering": ordering,
    }
    sealed = seal_headers(app, endpoint_id, headers) if headers else None
    with app.writing(session) as connection:
        if not table.change(app.store, connection, row):
            raise EndpointNotFound(f"there is no endpoint {endpoint_id!r}")
        if headers is not None:
            table.set_headers(app.store, connection, endpoint_id, sealed)


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
    """Send to it again, at once: its failures are forgotten, its breaker is closed, a rest that it asked for is over.
    What was cancelled meanwhile stays cancelled: see `recover`.

    Raises:
        EndpointNotFound: there is none of this id.
    """
    app = effects or default()
    with app.writing(session) as connection:
        _set_status(endpoint_id, "active", None, connection, app)
        health.forget(app.store, connection, endpoint_id)
        limits.ensure(app.store, connection, limit_key(endpoint_id), max_in_flight=MAX_IN_FLIGHT, breaker=BREAKER)
        limits.resume(app.store, connection, limit_key(endpoint_id), actor="endpoints enable")


def limit_key(endpoint_id: str) -> str:
    """The key under which an endpoint's deliveries share their cap and their pauses."""
    return f"webhook:{endpoint_id}"


def _patterns(patterns: Iterable[str]) -> list[str]:
    if isinstance(patterns, str):
        raise EndpointInvalid(f"patterns is a text; give a list, such as [{patterns!r}]")
    wanted = list(dict.fromkeys(check_pattern(pattern) for pattern in patterns))
    if not 1 <= len(wanted) <= PATTERNS_MAX:
        raise EndpointInvalid(f"give 1 to {PATTERNS_MAX} patterns; '*' takes every event")
    return wanted


def _rules(profile: str, overrides: Mapping[str, str] | None, ordering: str) -> dict[str, Any]:
    if profile not in PROFILES:
        raise EndpointInvalid(f"profile is {profile!r}; give {', '.join(PROFILES)}")
    if ordering not in ORDERINGS:
        raise EndpointInvalid(f"ordering is {ordering!r}; give {', '.join(ORDERINGS)}")
    return {"profile": profile, "overrides": check_overrides(overrides or {}), "ordering": ordering}


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
        profile=row.profile,
        overrides=msgspec.json.decode(row.overrides, type=dict[str, str]),
        ordering=row.ordering,
        has_headers=bool(row.has_headers),
        failing_since=None if row.failing_since is None else datetime.fromtimestamp(row.failing_since, UTC),
        failed_messages=row.failed_messages or 0,
        created_at=datetime.fromtimestamp(row.created_at, UTC),
    )
