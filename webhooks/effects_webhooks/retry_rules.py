"""How long each kind of failure is tried: the table, as data, and the pure function that reads it.

Three retry classes. *full* where the receiver may succeed by itself later; *short* where people fix it within hours (a
rotation, a deploy); *none* where the same bytes will fail again: dead at once, and open to replay. A failure on our
own side is *ours*: it uses up no try and does not count against the endpoint.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import msgspec

from effects import FixedSchedule, RetryPolicy
from effects.extend.arguments import DAY_SECONDS, shown
from effects_webhooks.errors import EndpointInvalid

RetryClass: TypeAlias = Literal["done", "full", "short", "none", "ours"]
Profile: TypeAlias = Literal["default", "patient", "spec", "strict"]
Overrides: TypeAlias = Mapping[str, str]
PROFILES: tuple[Profile, ...] = ("default", "patient", "spec", "strict")
_RETRY_CLASSES: tuple[RetryClass, ...] = ("full", "short", "none")  # what an override may give

_OVERRIDDEN = re.compile(r"[1345]([0-9]{2}|xx)")
_MAX_AGE_SECONDS = 5 * DAY_SECONDS
# The schedule of the Standard Webhooks specification: 10 tries in about 76 hours.
FULL = RetryPolicy(
    backoff=FixedSchedule((5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400)),
    max_age_seconds=_MAX_AGE_SECONDS,
)
SHORT = RetryPolicy(
    backoff=FixedSchedule((60, 600, 3600, 21_600)), max_age_seconds=_MAX_AGE_SECONDS
)  # 5 tries in about 7 h

HINT_MAX_SECONDS = DAY_SECONDS
PAUSE_SECONDS = {429: 10.0, 502: 2.0, 503: 2.0, 504: 2.0}  # of the endpoint, where no Retry-After says how long


@dataclass(frozen=True, slots=True)
class Rule:
    """One row. `hint`: Retry-After is obeyed; `pause`: the whole endpoint is paused, not the message."""

    retry_class: RetryClass
    why: str
    hint: bool = False
    pause: bool = False


_SUCCESS = Rule("done", "2xx is success, regardless of the body")
_REDIRECT = Rule("short", "never followed: the body is signed for this address; give the endpoint's new URL")
_INTERIM = Rule("short", "an interim answer and no final one: half a proxy, or a hostile peer")
_OTHER_4XX = Rule("none", "the same bytes will be refused again; replay when the receiver is fixed")
_OTHER_5XX = Rule("full", "the receiver failed and may succeed later", hint=True)
_NO_STATUS = Rule("short", "no status code of HTTP")

_UNAUTHORIZED = (
    "the partner does not accept the signature or what it checks besides: have them look at their clock, and whether "
    "they verify the raw body; in doubt of their secret, which is shown once only, give them another "
    "(`effects webhooks secrets rotate`); a proxy may ask for a header too"
)

_STATUS_RULES: Mapping[int, Rule] = {
    400: Rule("none", "the receiver cannot read these bytes, and they stay the same"),
    401: Rule("short", _UNAUTHORIZED),
    403: Rule("short", _UNAUTHORIZED),
    404: Rule("short", "the route is missing: a deploy fixes it in hours, or the path is wrong"),
    405: Rule("none", "the address takes no POST: the URL is wrong"),
    408: Rule("full", "the receiver requests another try", hint=True),
    409: Rule("short", "often 'this id is being processed'"),
    410: Rule("none", "gone: a second one for another message, 10 minutes later, disables the endpoint"),
    413: Rule("none", "too large, and the bytes will not shrink (with Retry-After: full)", hint=True),
    415: Rule("none", "the receiver refuses the format"),
    421: Rule("full", "another connection may reach the right host"),
    422: Rule("none", "the receiver understood the event and refuses it"),
    423: Rule("full", "locked for now"),
    425: Rule("full", "too early: another try is requested", hint=True),
    429: Rule("full", "too many requests: the whole endpoint is paused", hint=True, pause=True),
    451: Rule("none", "for legal reasons: people have to talk"),
    501: Rule("short", "not implemented: a deploy may change that", hint=True),
    502: Rule("full", "a gateway without its server: the whole endpoint is paused", hint=True, pause=True),
    503: Rule("full", "unavailable: the whole endpoint is paused", hint=True, pause=True),
    504: Rule("full", "a gateway without an answer: the whole endpoint is paused", hint=True, pause=True),
    505: Rule("short", "the HTTP version is refused: configuration", hint=True),
    508: Rule("short", "a loop: configuration", hint=True),
    511: Rule("full", "over verified TLS no portal on our side can send this, so the receiver did", hint=True),
}

FAULT_RULES: Mapping[str, Rule] = {
    "dns_failed": Rule("full", "the name does not resolve; nothing was sent"),
    "dns_timeout": Rule("full", "the name's servers do not answer; nothing was sent"),
    "connect_failed": Rule("full", "refused or unreachable; nothing was sent"),
    "connect_timeout": Rule("full", "no connection in time; nothing was sent"),
    "tls_failed": Rule("full", "the certificate or the protocol is wrong; renewals take hours; nothing was sent"),
    "tls_timeout": Rule("full", "no handshake in time; nothing was sent"),
    "no_answer": Rule("full", "the request left and the connection ended: it may have been handled"),
    "answer_timeout": Rule("full", "the request left and no answer came in time: it may have been handled"),
    "bad_answer": Rule("short", "the request left and what came back is not HTTP: it may have been handled"),
    "answer_too_long": Rule("short", "the request left and interim answers (1xx) do not end: it may have been handled"),
    "blocked_address": Rule("none", "the address is not allowed; nothing was sent"),
    "bad_url": Rule("none", "no request can be made of the stored URL; nothing was sent"),
    "our_resolver": Rule("ours", "names of several endpoints do not resolve here: our resolver is at fault"),
    "our_network": Rule("ours", "this machine is out of sockets, ports or memory, or its network is down"),
}

_PATIENT: Mapping[int, Rule] = {
    status: Rule("short", "probably forever, but deploys happen")
    for status in (*range(400, 500),)
    if status not in _STATUS_RULES or status in (400, 405, 422)
}
_STRICT: Mapping[int, Rule] = {
    status: Rule("none", "strict: a 4xx is final")
    for status in range(400, 500)
    if status not in (408, 409, 421, 423, 425, 429)
}
_SPEC: Mapping[int, Rule] = {
    status: Rule("full", "spec: whatever is not 2xx is tried again", hint=True)
    for status in (*range(100, 200), *range(300, 600))
    if status != 410
}
_OF_PROFILE: Mapping[str, Mapping[int, Rule]] = {
    "default": {}, "patient": _PATIENT, "spec": _SPEC, "strict": _STRICT,
}  # fmt: skip


def rule_of(
    status: int | None,
    fault: str | None = None,
    *,
    profile: str = "default",
    overrides: Overrides | None = None,
    hinted: bool = False,
) -> Rule:
    """The row for a response's status, or for a fault.

    Args:
        profile: `default`; `patient` is short where the default gives a 4xx up; `spec` is full for all but 2xx
            and 410; `strict` gives every 4xx up but 408, 409, 421, 423, 425 and 429. An unknown one counts as default.
        overrides: of an endpoint: a status, or a class such as `4xx`, to a retry class. A 2xx cannot be overridden.
        hinted: the answer has a Retry-After that can be read.
    """
    if status is None:
        return FAULT_RULES.get(fault or "no_answer", FAULT_RULES["no_answer"])
    rule = _of_status(status, profile)
    if hinted and status == 413 and profile != "strict":
        rule = replace(rule, retry_class="full", why="too large for now, by its Retry-After")
    override = (overrides or {}).get(str(status)) or (overrides or {}).get(f"{status // 100}xx")
    if override in _RETRY_CLASSES and rule.retry_class != "done":
        rule = replace(rule, retry_class=override, why=f"set for this endpoint ({rule.why})")
    return rule


def _of_status(status: int, profile: str) -> Rule:
    if 200 <= status <= 299:
        return _SUCCESS
    plain = _STATUS_RULES.get(status) or _of_class(status)
    special = _OF_PROFILE.get(profile, {}).get(status)
    return replace(special, hint=plain.hint or special.hint, pause=plain.pause) if special else plain


def _of_class(status: int) -> Rule:
    return {1: _INTERIM, 3: _REDIRECT, 4: _OTHER_4XX, 5: _OTHER_5XX}.get(status // 100, _NO_STATUS)


def rule_of_code(code: str | None, *, profile: str = "default", overrides: Overrides | None = None) -> Rule:
    """The row of a stored error code: `http_503`, `connect_failed`."""
    if code is not None and code.startswith("http_"):
        return rule_of(int(code.removeprefix("http_")), profile=profile, overrides=overrides)
    return rule_of(None, code)


def pause_seconds(status: int | None, rule: Rule, hint: float | None) -> float | None:
    """How long the whole endpoint is paused after this answer; None where it continues."""
    if status is None or rule.retry_class in ("done", "ours"):
        return None
    if rule.hint and hint is not None:
        return hint or None  # Retry-After: 0 requests no pause
    return PAUSE_SECONDS.get(status) if rule.pause else None


def overrides_of(stored: str) -> dict[str, str]:
    """The overrides of an endpoint's row. What is no text there, written by hand, overrides nothing."""
    decoded = msgspec.json.decode(stored, type=dict[str, Any])
    return {name: retry_class for name, retry_class in decoded.items() if isinstance(retry_class, str)}


def check_overrides(overrides: Mapping[str, str]) -> dict[str, str]:
    """An endpoint's overrides, if they can be.

    Raises:
        EndpointInvalid: names the entry that cannot be.
    """
    for name, retry_class in overrides.items():
        if not isinstance(name, str) or not _OVERRIDDEN.fullmatch(name):
            raise EndpointInvalid(f"retry override {shown(name)}: give a status such as 404, or a class such as 4xx")
        if retry_class not in _RETRY_CLASSES:
            raise EndpointInvalid(f"retry override {name}={shown(retry_class)}: give {', '.join(_RETRY_CLASSES)}")
    return dict(overrides)
