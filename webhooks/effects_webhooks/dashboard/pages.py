"""The entry point `effects.pages`: routes, navigation, pages, and what the core's pages show of webhooks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from effects.extend.actions import AuditAction
from effects.extend.ledger import LEDGER_STATES
from effects.extend.text import moment_or_none
from effects.web import (
    LIVE_SECONDS,
    PAGE_ROWS,
    ActionCall,
    ActionEnd,
    ActionField,
    NavigationEntry,
    PageAction,
    PageAnswer,
    PageRoute,
    Pages,
    Problem,
    StoryLink,
    Visit,
    before_of,
    choice_of,
    chosen_of,
    filters_of,
    notice,
    page_of,
    story_values,
    text_of,
)
from effects_webhooks.admin.deliveries import (
    DeliverySummary,
    get_delivery,
    get_event,
    list_deliveries,
    list_events,
    read_traffic,
    recover,
    replay_delivery,
    replay_event,
)
from effects_webhooks.admin.endpoints import Endpoint, disable_endpoint, enable_endpoint, get_endpoint, list_endpoints
from effects_webhooks.admin.rotation import expire_secret, list_secrets, rotate_secret
from effects_webhooks.api import send_test
from effects_webhooks.classify import DeliveryExplanation
from effects_webhooks.classify import explain as explain_answer
from effects_webhooks.errors import EndpointNotFound, EventNotFound
from effects_webhooks.retry_rules import FAULT_RULES
from effects_webhooks.tables import delivery_rows as table
from effects_webhooks.tables import endpoint_rows
from effects_webhooks.tables.delivery_rows import RETRYING, STANDINGS
from effects_webhooks.tenants import ANY_TENANT, Tenant
from effects_webhooks.writing import JOB_TYPE, limit_key

_RECOVER_MAX = 200  # in one request
_SINCE = {"1 hour": 1, "6 hours": 6, "1 day": 24, "3 days": 72, "7 days": 168}
_EVEN_IF_DONE = ActionField(
    "even_if_done", "Also those that were answered with 2xx: they arrive a second time", "tick", role="admin"
)


def _disable(call: ActionCall) -> None:
    disable_endpoint(call.subject, actor=call.actor, reason=call.reason, tenant=ANY_TENANT, effects=call.visit.app)


def _enable(call: ActionCall) -> None:
    enable_endpoint(call.subject, actor=call.actor, reason=call.reason, tenant=ANY_TENANT, effects=call.visit.app)


def _test(call: ActionCall) -> ActionEnd:
    receipt = send_test(call.subject, actor=call.actor, reason=call.reason, tenant=ANY_TENANT, effects=call.visit.app)
    return ActionEnd(call.visit.url("webhooks_delivery", event=receipt.event_id, endpoint=call.subject))


def _recover(call: ActionCall) -> ActionEnd:
    since = datetime.now(UTC) - timedelta(hours=_SINCE[call.fields["since"]])
    replayed = recover(
        call.subject, since=since, limit=_RECOVER_MAX, actor=call.actor, reason=call.reason, tenant=ANY_TENANT,
        effects=call.visit.app,
    )  # fmt: skip
    return ActionEnd(count=len(replayed.jobs))


def _what_failed(visit: Visit, endpoint_id: str) -> str:
    """What a recovery would concern, by how far back it reaches."""
    with visit.app.store.read() as connection:
        failed = table.count_failed(visit.app.store, connection, endpoint_id, tuple(_SINCE.values()))
    if not any(failed.values()):
        return "Nothing has been given up: there is nothing to recover."
    counts = (f"{failed[hours]:,} in the last {words}" for words, hours in _SINCE.items())
    return f"Given up: {', '.join(counts)}."


def _try_now(call: ActionCall) -> None:
    """The pause ends whatever is due; what is due next goes first."""
    next_job = read_traffic(call.visit.app, call.subject).next_job
    call.visit.resume_limit(limit_key(call.subject), call.reason)
    if next_job is not None:
        call.visit.run_now(next_job, call.reason)


def _replay_delivery(call: ActionCall) -> ActionEnd:
    event_id, _, endpoint_id = call.subject.partition(":")
    replay_delivery(
        event_id, endpoint_id, confirm_done=call.fields["even_if_done"] == "yes", actor=call.actor, reason=call.reason,
        tenant=ANY_TENANT, effects=call.visit.app,
    )  # fmt: skip
    return ActionEnd(call.visit.url("webhooks_delivery", event=event_id, endpoint=endpoint_id))


def _replay_event(call: ActionCall) -> ActionEnd:
    replayed = replay_event(
        call.subject, confirm_done=call.fields["even_if_done"] == "yes", actor=call.actor, reason=call.reason,
        tenant=ANY_TENANT, effects=call.visit.app,
    )  # fmt: skip
    return ActionEnd(count=len(replayed.jobs))


def _to_endpoint(visit: Visit, name: str) -> str:
    return visit.url("webhooks_endpoint", endpoint=name)


def _to_event(visit: Visit, name: str) -> str:
    return visit.url("webhooks_event", event=name)


def _to_delivery(visit: Visit, name: str) -> str:
    event_id, colon, endpoint_id = name.partition(":")
    if not colon:
        raise EventNotFound("a delivery is named msg_…:ep_…")
    return visit.url("webhooks_delivery", event=event_id, endpoint=endpoint_id)


_ACTIONS = (
    PageAction("webhooks_try", "/webhooks/endpoints/try", "endpoint", "operator", "Try now",
               "Its pause ends, its breaker closes, and the delivery that is due next is due now. What waited for the "
               "pause alone goes out too; other attempts keep their times.",
               "It is tried now: its response comes to this page.", _try_now, _to_endpoint),
    PageAction("webhooks_disable", "/webhooks/endpoints/disable", "endpoint", "operator", "Disable",
               "Nothing more is sent to it: new events pass it by, and what waits ends cancelled when it falls due. To "
               "hold deliveries back without losing them, pause its limit key.", "The endpoint is disabled.", _disable,
               _to_endpoint, danger=True),
    PageAction("webhooks_enable", "/webhooks/endpoints/enable", "endpoint", "operator", "Enable",
               "Deliveries go on at once: its failures are cleared, its breaker closes, its pause ends. What was "
               "cancelled meanwhile stays cancelled; recover sends it again.", "The endpoint is enabled.", _enable,
               _to_endpoint),
    PageAction("webhooks_test", "/webhooks/endpoints/test", "endpoint", "operator", "Send a test",
               "An event of the type webhook.test is sent to it, signed like any other.",
               "The test is on its way: this page follows it.", _test, _to_endpoint),
    PageAction("webhooks_recover", "/webhooks/endpoints/recover", "endpoint", "operator", "Recover",
               "What ended without success is sent again with the same id and bytes, oldest first, at most 200 "
               "deliveries at a time. What is still retrying is left alone.",
               "{n} deliveries are sent again. Were it 200, there may be more: recover once more.", _recover,
               _to_endpoint, fields=(ActionField("since", "What ended in the last", "choice", tuple(_SINCE)),),
               preview=_what_failed),
    PageAction("webhooks_replay", "/webhooks/deliveries/replay", "delivery", "operator", "Send again",
               "The same event with the same webhook-id and the same bytes: a receiver that knows the id drops it.",
               "It is sent again.", _replay_delivery, _to_delivery, fields=(_EVEN_IF_DONE,)),
    PageAction("webhooks_replay_event", "/webhooks/events/replay", "event", "operator", "Send again to all",
               "Each ended delivery of the event is sent again, with the same id and bytes. What waits is left alone.",
               "{n} deliveries are sent again.", _replay_event, _to_event, fields=(_EVEN_IF_DONE,)),
)  # fmt: skip


# What a form offers for how long the secrets before it still sign: words → hours.
_OVERLAPS = {"1 day": 24, "1 hour": 1, "3 days": 72, "7 days": 168, "not at all: one has leaked": 0}


def _rotate(call: ActionCall) -> ActionEnd:
    """The only page that ever shows the secret."""
    overlap = call.fields["overlap"]
    created = rotate_secret(
        call.subject, overlap_seconds=_OVERLAPS[overlap] * 3_600.0, actor=call.actor, reason=call.reason,
        tenant=ANY_TENANT, effects=call.visit.app,
    )  # fmt: skip
    return ActionEnd(
        answer=call.visit.page(
            "webhooks/secret.html", created=created, overlap=overlap if _OVERLAPS[overlap] else None,
            endpoint_id=call.subject, back=_to_settings(call.visit, call.subject),
        )
    )  # fmt: skip


def _expire(call: ActionCall) -> None:
    _, secret_id = _parts(call.subject)
    expire_secret(secret_id, actor=call.actor, reason=call.reason, tenant=ANY_TENANT, effects=call.visit.app)


def _parts(name: str) -> tuple[str, str]:
    endpoint_id, colon, secret_id = name.partition(":")
    if not colon:
        raise EndpointNotFound("a secret is named ep_…:sec_…")
    return endpoint_id, secret_id


def _to_settings(visit: Visit, name: str) -> str:
    return visit.url("webhooks_settings", endpoint=name.partition(":")[0])


_SECRET_ACTIONS = (
    PageAction("webhooks_rotate", "/webhooks/endpoints/rotate", "endpoint", "admin", "Rotate the secret",
               "A new secret signs from the next try on, beside those before it for as long as you choose. It is shown "
               "once, on the page that follows: have a safe way to the partner ready.",
               "The secret is rotated.", _rotate, _to_settings,
               fields=(ActionField("overlap", "The secrets before it still sign for", "choice", tuple(_OVERLAPS)),)),
    PageAction("webhooks_expire", "/webhooks/secrets/expire", "secret", "admin", "Expire",
               "It signs nothing more from the next try on: a partner who still checks by it refuses what we send.",
               "The secret has expired.", _expire, _to_settings, danger=True),
)  # fmt: skip


ENDPOINTS_MAX = 500
_ENDPOINT_STATES = ("active", "disabled", "failing")
_WHAT_IF = ("404", "410", "429", "500", "503", "no_answer", "connect_failed")
ATTEMPTS = (1, 3, 6, 10)


def endpoints(visit: Visit) -> PageAnswer:
    """The endpoints, those that fail first."""
    tenant, status = text_of(visit.query, "tenant"), choice_of(visit.query, "status", _ENDPOINT_STATES)
    every = visit.read("webhooks", LIVE_SECONDS, lambda: list_endpoints(tenant=ANY_TENANT, effects=visit.app))
    fitting = [endpoint for endpoint in every if tenant in (None, endpoint.tenant) and _has(endpoint, status)]
    fitting.sort(key=lambda endpoint: (endpoint.failing_since is None, endpoint.status != "active"))
    return visit.page(
        "webhooks/endpoints.html", endpoints=fitting[:ENDPOINTS_MAX], more=len(fitting) - ENDPOINTS_MAX, tenant=tenant,
        status=status, states=_ENDPOINT_STATES, any_at_all=bool(every), notice=notice(visit),
    )  # fmt: skip


def _has(endpoint: Endpoint, status: str | None) -> bool:
    if status == "failing":
        return endpoint.status == "active" and endpoint.failing_since is not None
    return status in (None, endpoint.status)


def endpoint(visit: Visit) -> PageAnswer:
    """One endpoint: how it does and why, and its deliveries with what it said last; those that fail before others."""
    shown = get_endpoint(visit.values["endpoint"], tenant=ANY_TENANT, effects=visit.app)
    limit = visit.limit_of(limit_key(shown.id))
    traffic = visit.count(("webhooks", shown.id), LIVE_SECONDS, lambda app: read_traffic(app, shown.id))
    tab = choice_of(visit.query, "status", ("all", *STANDINGS)) or ("failing" if traffic.counts["failing"] else "all")
    before = before_of(visit)
    page = list_deliveries(
        endpoint_id=shown.id, standing=None if tab == "all" else tab, before=before, limit=PAGE_ROWS,
        tenant=ANY_TENANT, effects=visit.app,
    )  # fmt: skip
    last = visit.last_attempts([*traffic.last_jobs, *(delivery.job_id for delivery in page.deliveries)])
    answers = [last[job_id] for job_id in traffic.last_jobs if job_id in last]
    times = [time for time in (traffic.next_at, limit.paused_until if limit else None) if time is not None]
    return visit.page(
        "webhooks/endpoint.html", endpoint=shown, limit=limit, traffic=traffic, tab=tab, page=page, last=last,
        answer=max(answers, key=lambda attempt: attempt.finished_at, default=None), first=before is None,
        next_at=max(times, default=None) if traffic.next_at else None, every=sum(traffic.counts.values()),
        standings=STANDINGS, limit_key=limit_key(shown.id), recent=table.RECENT, notice=notice(visit),
    )  # fmt: skip


def endpoint_settings(visit: Visit) -> PageAnswer:
    """What an endpoint takes, its secrets, and what its responses lead to."""
    shown = get_endpoint(visit.values["endpoint"], tenant=ANY_TENANT, effects=visit.app)
    return visit.page(
        "webhooks/endpoint_settings.html", endpoint=shown,
        secrets=list_secrets(shown.id, tenant=ANY_TENANT, effects=visit.app),
        what_if=[_explained(shown, what) for what in _WHAT_IF], notice=notice(visit),
    )  # fmt: skip


def explain(visit: Visit) -> PageAnswer:
    """What follows an answer or a fault, attempt by attempt; of one endpoint, by its own rules."""
    endpoint_id, what = text_of(visit.query, "endpoint"), text_of(visit.query, "what") or "503"
    hint = text_of(visit.query, "retry_after")
    shown = None if endpoint_id is None else get_endpoint(endpoint_id, tenant=ANY_TENANT, effects=visit.app)
    explained = [(attempt, _explained(shown, what, hint=hint, attempt=attempt)) for attempt in ATTEMPTS]
    return visit.page(
        "webhooks/explain.html", endpoint=shown, what=what, hint=hint, explained=explained, faults=list(FAULT_RULES),
    )  # fmt: skip


def _explained(
    endpoint: Endpoint | None, what: str, *, hint: str | None = None, attempt: int = 1
) -> DeliveryExplanation:
    profile: str = "default" if endpoint is None else endpoint.profile
    overrides: Mapping[str, str] = {} if endpoint is None else endpoint.overrides
    return explain_answer(what, hint=hint, attempt=attempt, profile=profile, overrides=dict(overrides))


REVEAL = AuditAction("event", "reveal")
_BODY_CHARS_MAX = 64 * 1024
STATES = (RETRYING, *LEDGER_STATES)


def deliveries(visit: Visit) -> PageAnswer:
    """Deliveries by endpoint, event and state, newest first."""
    chosen = filters_of(visit.query, ("endpoint", "event", "tenant"))
    state, before = choice_of(visit.query, "status", STATES), before_of(visit)
    page = list_deliveries(
        endpoint_id=chosen["endpoint"], event_id=chosen["event"], state=state, before=before, limit=PAGE_ROWS,
        tenant=_tenant(chosen["tenant"]), effects=visit.app,
    )  # fmt: skip
    return visit.page(
        "webhooks/deliveries.html", page=page, names=_names(visit, page.deliveries), chosen=chosen_of(chosen),
        state=state, states=STATES, first=before is None, notice=notice(visit),
    )  # fmt: skip


def _names(visit: Visit, deliveries: Sequence[DeliverySummary]) -> Mapping[str, str]:
    ids = {delivery.endpoint_id for delivery in deliveries}
    with visit.app.store.read() as connection:
        return endpoint_rows.names(visit.app.store, connection, ids)


def delivery(visit: Visit) -> PageAnswer:
    """One delivery: its request, and each try with its answer."""
    event_id, endpoint_id = visit.values["event"], visit.values["endpoint"]
    shown = get_delivery(event_id, endpoint_id, tenant=ANY_TENANT, effects=visit.app)
    try:
        endpoint = get_endpoint(endpoint_id, tenant=ANY_TENANT, effects=visit.app)
    except EndpointNotFound:  # deleted since
        endpoint = None
    return visit.page(
        "webhooks/delivery.html", **{**story_values(visit, visit.evidence(shown.job_id)), "links": ()},
        delivery=shown, endpoint=endpoint,
    )  # fmt: skip


def events(visit: Visit) -> PageAnswer:
    """Events without their bodies, newest first."""
    before, tenant = text_of(visit.query, "before"), text_of(visit.query, "tenant")
    rows, older = page_of(list_events(before=before, limit=PAGE_ROWS + 1, tenant=_tenant(tenant), effects=visit.app))
    return visit.page(
        "webhooks/events.html", events=rows, older=older, first=before is None, tenant=tenant,
        notice=notice(visit),
    )  # fmt: skip


def event(visit: Visit) -> PageAnswer:
    """One event and its deliveries, without its body."""
    return _event(visit)


def reveal(visit: Visit) -> PageAnswer:
    """The same with the body, noted in the audit log first."""
    visit.note_look(REVEAL, visit.values["event"])
    return _event(visit, revealed=True)


def _event(visit: Visit, *, revealed: bool = False) -> PageAnswer:
    shown = get_event(visit.values["event"], tenant=ANY_TENANT, effects=visit.app)
    page = list_deliveries(event_id=shown.id, limit=PAGE_ROWS, tenant=ANY_TENANT, effects=visit.app)
    return visit.page(
        "webhooks/event.html", revealed=revealed, event=shown, size=len(shown.body), page=page,
        names=_names(visit, page.deliveries),
        body=_pretty(shown.body) if revealed else None, notice=notice(visit),
    )  # fmt: skip


def _tenant(name: str | None) -> Tenant:
    return ANY_TENANT if name is None else name


def _pretty(body: bytes) -> str:
    """The JSON with its lines; otherwise the bytes as text."""
    try:
        text = msgspec.json.format(body, indent=2).decode()
    except (msgspec.MsgspecError, UnicodeDecodeError):
        text = body.decode("utf-8", errors="backslashreplace")
    return text if len(text) <= _BODY_CHARS_MAX else f"{text[:_BODY_CHARS_MAX]}\n…"


def _links(visit: Visit, evidence: Any) -> Sequence[StoryLink]:
    """Of the job of a delivery: the delivery, its event and its endpoint."""
    event_id, colon, endpoint_id = (evidence.key or "").partition(":")
    if evidence.job_type != JOB_TYPE or not colon:
        return ()
    return (
        StoryLink("The delivery", visit.url("webhooks_delivery", event=event_id, endpoint=endpoint_id)),
        StoryLink("Its event", visit.url("webhooks_event", event=event_id)),
        StoryLink("Its endpoint", visit.url("webhooks_endpoint", endpoint=endpoint_id)),
    )


def _find(visit: Visit, question: str) -> Sequence[StoryLink]:
    """Endpoints by id or name, and an event by its id."""
    store = visit.app.store
    with store.read() as connection:
        named = endpoint_rows.find_named(store, connection, question)
        is_event = question.startswith("msg_") and table.event_exists(store, connection, question, None)
    links = [StoryLink(f"Endpoint {endpoint_rows.name_of(row)}", _to_endpoint(visit, row.id)) for row in named]
    return [*links, *([StoryLink(f"Event {question}", _to_event(visit, question))] if is_event else [])]


_NAMED, _ERRORS, _SAID_CHARS = 3, 20, 60
_OWN_PAUSES = ("the endpoint answered", "the breaker opened")


def _problems(visit: Visit) -> Sequence[Problem]:
    """The endpoints that fail, in one row, with what they said last."""
    store = visit.app.store
    with store.snapshot() as connection:
        counts = endpoint_rows.failing_counts(store, connection)
        failing = endpoint_rows.failing_endpoints(store, connection, _ERRORS)
        tried = endpoint_rows.last_tried(store, connection, [row.id for row in failing])
    if not counts.failing:
        return ()
    named = [(endpoint_rows.name_of(row), _to_endpoint(visit, row.id)) for row in failing]
    said = Counter(map(_said, visit.last_attempts(list(tried.values())).values())).most_common(_NAMED)
    if counts.failing == 1:
        text, page, button = f"{named[0][0]} is failing", named[0][1], "Open"
    else:
        text = f"{counts.failing:,} of {counts.endpoints:,} endpoints are failing"
        page, button = visit.url("webhooks", status="failing"), "Show endpoints"
    return [
        Problem(
            word="failing", text=text, url=page, names=named[:_NAMED] if counts.failing > 1 else (),
            affected=f"{int(counts.messages):,} messages", since=moment_or_none(counts.since),
            error=" · ".join(f"{words} ({count})" for words, count in said), button=button, button_url=page,
        )
    ]  # fmt: skip


def _said(attempt: Any) -> str:
    """The response in a few words: its status and how its body begins."""
    detail = attempt.detail if isinstance(attempt.detail, dict) else {}
    if "status" not in detail:
        return str(attempt.answer)
    return " ".join(f"{detail['status']} {detail.get('response') or ''}"[:_SAID_CHARS].split())


def _covers(held: Any) -> bool:
    """What is paused because it fails; what a person has paused has a row of its own."""
    is_ours = held.name.startswith(limit_key(""))
    return held.name == "endpoints" or (is_ours and held.reason is not None and held.reason.startswith(_OWN_PAUSES))


def _route(name: str, pattern: str, view: Any) -> PageRoute:
    return PageRoute(name, ("GET",), pattern, view, role="viewer", personal=False)


PAGES = Pages(
    name="webhooks",
    label="Webhooks",
    package="effects_webhooks.dashboard",
    navigation=(
        NavigationEntry("webhooks", "Endpoints", "e"),
        NavigationEntry("webhooks_deliveries", "Deliveries", "v"),
        NavigationEntry("webhooks_events", "Events", "t"),
    ),
    subjects={"endpoints": lambda visit, endpoint_id: visit.url("webhooks_endpoint", endpoint=endpoint_id)},
    routes=(
        _route("webhooks", "/webhooks", endpoints),
        _route("webhooks_endpoint", "/webhooks/endpoints/{endpoint}", endpoint),
        _route("webhooks_settings", "/webhooks/endpoints/{endpoint}/settings", endpoint_settings),
        _route("webhooks_explain", "/webhooks/explain", explain),
        _route("webhooks_deliveries", "/webhooks/deliveries", deliveries),
        _route("webhooks_delivery", "/webhooks/deliveries/{event}/{endpoint}", delivery),
        _route("webhooks_events", "/webhooks/events", events),
        _route("webhooks_event", "/webhooks/events/{event}", event),
        PageRoute("webhooks_reveal", ("POST",), "/webhooks/events/{event}/reveal", reveal,
                  role="viewer", personal=True, acts=True),
    ),
    actions=(*_ACTIONS, *_SECRET_ACTIONS),
    missing=(EndpointNotFound, EventNotFound),
    links=_links,
    problems=_problems,
    covers=_covers,
    find=_find,
)  # fmt: skip
