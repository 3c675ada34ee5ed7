"""The retry table: every status and fault has its row, the profiles and overrides, Retry-After, explain."""

from __future__ import annotations

from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from effects import Done, Outcome, Refused, Retry, Unknown
from effects.model.decision import decide
from effects.model.job import Job
from effects.model.job_type import JobType
from effects.model.outcome import Pause
from effects_webhooks import EndpointInvalid, EventInvalid, explain
from effects_webhooks.classify import RetryContext, classify, http_date, retry_after
from effects_webhooks.retry_rules import FAULT_RULES, FULL, PROFILES, SHORT, check_overrides, rule_of, rule_of_code
from effects_webhooks.transport.exchange import WebhookExchange

NOW = 1_800_000_000.0
FULL_STATUS = {408, 421, 423, 425, 429, *range(500, 600)} - {501, 505, 508}
SHORT_STATUS = {*range(100, 200), *range(300, 400), 401, 403, 404, 409, 501, 505, 508}


def answered(status: int, **headers: str) -> WebhookExchange:
    exchange = WebhookExchange(1)
    exchange.wrote, exchange.status, exchange.answered_at = True, status, NOW
    exchange.head = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return exchange


def failed(code: str, *, wrote: bool = False) -> WebhookExchange:
    exchange = WebhookExchange(1)
    exchange.wrote = wrote
    exchange.fail(code, "why")
    return exchange


def class_of(status: int) -> str:
    if 200 <= status <= 299:
        return "done"
    return "full" if status in FULL_STATUS else "short" if status in SHORT_STATUS else "none"


def test_every_status_has_its_class_and_a_reason() -> None:
    kinds: dict[str, type[Outcome]] = {"done": Done, "full": Retry, "short": Retry, "none": Refused}
    for status in range(100, 600):
        rule, expected = rule_of(status), class_of(status)
        assert rule.retry_class == expected, status
        assert len(rule.why) > 5, status
        outcome = classify(answered(status), host="partner.test")
        assert type(outcome) is kinds[expected], status
        if isinstance(outcome, Retry):
            assert outcome.policy == (FULL if expected == "full" else SHORT), status


@pytest.mark.parametrize("code", FAULT_RULES)
@pytest.mark.parametrize("wrote", [False, True])
def test_every_fault_has_its_outcome(code: str, wrote: bool) -> None:
    outcome = classify(failed(code, wrote=wrote), host="partner.test")
    retry_class = FAULT_RULES[code].retry_class
    if wrote:
        assert isinstance(outcome, Unknown)
        assert FAULT_RULES[outcome.code].retry_class != "ours"  # each try counts
    elif retry_class == "ours":
        assert isinstance(outcome, Pause)
    else:
        assert isinstance(outcome, Refused if retry_class == "none" else Retry)


def test_the_retry_classes_are_as_long_as_documented() -> None:
    assert (FULL.max_attempts, SHORT.max_attempts) == (10, 5)
    assert 74 < sum(FULL.delay_seconds(n, draw=lambda: 0.0) for n in range(1, 10)) / 3600 < 77
    assert 7 < sum(SHORT.delay_seconds(n, draw=lambda: 0.0) for n in range(1, 5)) / 3600 < 7.5


def test_the_profiles_differ_where_they_should() -> None:
    classes_by_profile = {
        profile: [
            rule_of(status, profile=profile).retry_class for status in (302, 400, 404, 409, 410, 418, 429, 503, 505)
        ]
        for profile in PROFILES
    }
    assert classes_by_profile == {
        "default": ["short", "none", "short", "short", "none", "none", "full", "full", "short"],
        "patient": ["short", "short", "short", "short", "none", "short", "full", "full", "short"],
        "spec": ["full", "full", "full", "full", "none", "full", "full", "full", "full"],
        "strict": ["short", "none", "none", "short", "none", "none", "full", "full", "short"],
    }
    for profile in PROFILES:
        assert rule_of(429, profile=profile).pause
        assert all(rule_of(status, profile=profile).retry_class == "done" for status in range(200, 300))
    assert rule_of(418, profile="no such profile") == rule_of(418)


def test_an_override_beats_the_profile_but_not_a_success() -> None:
    overrides = check_overrides({"404": "full", "5xx": "none", "503": "short"})
    classes = [rule_of(status, overrides=overrides).retry_class for status in (404, 500, 503, 403)]
    assert classes == ["full", "none", "short", "short"]
    assert rule_of(200, overrides={"200": "none"}).retry_class == "done"
    assert rule_of(404, overrides={"404": "nonsense"}).retry_class == "short"  # a row written by other software


@pytest.mark.parametrize(
    ("name", "retry_class"), [("200", "full"), ("2xx", "none"), ("600", "full"), ("40", "full"), ("xxx", "full"),
                         ("４04", "full"), ("404", "done"), ("404", "ours"), ("404", "")],
)  # fmt: skip
def test_invalid_overrides_are_refused(name: str, retry_class: str) -> None:
    with pytest.raises(EndpointInvalid):
        check_overrides({name: retry_class})


# -- Retry-After ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("120", 120), (" 120 ", 120), ("0", 0), ("1", 1), ("1.2", 2), ("86400", 86400), ("86401", 86400),
        ("1000000000", 86400), ("9" * 20, 86400), ("9" * 70, None), ("-1", None), ("-0", None), ("+5", None),
        ("1e3", None), ("0x10", None), ("١٢", None), ("NaN", None), ("inf", None), ("", None), (None, None),
        ("soon", None), ("120, 60", None), ("1 2", None), ("\x00", None),
        (formatdate(NOW + 90, usegmt=True), 90), (formatdate(NOW - 90, usegmt=True), None),
        (formatdate(NOW + 10**9, usegmt=True), 86400), ("Fri, 15 Jan 2027 08:01:30 GMT", 90),
        ("Friday, 15-Jan-27 08:01:30 GMT", 90), ("Fri Jan 15 08:01:30 2027", 90),
        ("Fri, 99 Jan 2027 08:01:30 GMT", None),
    ],
)  # fmt: skip
def test_retry_after(value: str | None, seconds: float | None) -> None:
    assert retry_after(value, NOW) == seconds


@given(st.text(max_size=80))
def test_no_text_breaks_the_parser(value: str) -> None:
    seconds = retry_after(value, NOW)
    assert seconds is None or 0 <= seconds <= 86400
    assert http_date(value) is None or isinstance(http_date(value), float)


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 507, 599])
def test_retry_after_is_obeyed_by_the_message_and_the_endpoint(status: int) -> None:
    outcome = classify(answered(status, retry_after="7200"), host="partner.test")
    assert isinstance(outcome, Retry)
    assert (outcome.after_seconds, outcome.pause_seconds) == (7200, 7200)


@pytest.mark.parametrize("status", [301, 401, 404, 409, 421, 423])
def test_retry_after_is_ignored_for_other_statuses(status: int) -> None:
    outcome = classify(answered(status, retry_after="7200"), host="partner.test")
    assert isinstance(outcome, Retry)
    assert (outcome.after_seconds, outcome.pause_seconds) == (None, None)


def test_a_429_without_retry_after_pauses_briefly_and_a_500_does_not() -> None:
    pauses = {}
    for status in (429, 500, 502, 503, 504):
        outcome = classify(answered(status), host="partner.test")
        assert isinstance(outcome, Retry)
        pauses[status] = outcome.pause_seconds
    assert pauses == {429: 10, 500: None, 502: 2, 503: 2, 504: 2}


def test_too_large_for_now_is_tried_again() -> None:
    assert isinstance(classify(answered(413), host="h"), Refused)
    outcome = classify(answered(413, retry_after="60"), host="h")
    assert isinstance(outcome, Retry)
    assert (outcome.policy, outcome.after_seconds) == (FULL, 60)


@given(st.integers(min_value=1, max_value=10**6), st.floats(min_value=0, max_value=0.999))
def test_no_wait_is_shorter_than_retry_after(hint: int, draw: float) -> None:
    outcome = classify(answered(429, retry_after=str(hint)), host="h")
    settled = decide(job(1), _TYPE, outcome, released=True, draw=lambda: draw)
    assert settled.status == "failed"
    assert settled.delay_seconds >= min(hint, 86400)


# -- the receiver's clock --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("off", "says"), [(0, None), (-200, None), (200, None), (-400, "behind"), (400, "ahead of")])
def test_a_receiver_whose_clock_is_off_gets_a_warning(off: int, says: str | None) -> None:
    outcome = classify(answered(200, date=formatdate(NOW + off, usegmt=True)), host="h")
    assert isinstance(outcome, Done)
    assert outcome.detail is not None
    if says is None:
        assert "warning" not in outcome.detail
    else:
        assert f"{abs(off)} s {says} ours" in outcome.detail["warning"]
        assert outcome.detail["skew_seconds"] == off


# -- retry classes count apart -----------------------------------------------------------------------------------------


class _Type(JobType[dict[str, object]]):
    name = "test.deliver"


_TYPE: JobType[object] = _Type()  # type: ignore[assignment]


def job(attempts: int, *, max_attempts: int | None = None) -> Job:
    return Job(
        id=1, job_type="test.deliver", payload="{}", queue="q", priority=5, attempts=attempts,
        max_attempts=max_attempts, lease_token=1, lost_count=0, unknown_count=0, released=True, routed=True,
        expired=False, cancel_requested=False, age_seconds=10.0, limit_key="k",
    )  # fmt: skip


def after(earlier: list[str], status: int, *, max_attempts: int | None = None) -> str:
    outcome = classify(answered(status), host="h", context=RetryContext(earlier=earlier))
    return decide(job(len(earlier) + 1, max_attempts=max_attempts), _TYPE, outcome, released=True).status


def test_each_retry_class_counts_its_own_tries() -> None:
    assert after(["http_503"] * 8, 404) == "failed"  # the first of the short ones
    assert after(["http_404"] * 4, 503) == "failed"
    assert after(["http_404"] * 4, 404) == "dead"
    assert after(["http_503"] * 9, 503) == "dead"
    assert after(["http_404", "connect_failed"] * 4, 401) == "dead"
    assert after(["http_404", "connect_failed"] * 4, 500) == "failed"
    assert after(["http_503"], 503, max_attempts=2) == "dead"  # the job's own word holds


def test_the_wait_follows_the_classes_own_count() -> None:
    outcome = classify(answered(404), host="h", context=RetryContext(earlier=["http_503"] * 6))
    assert decide(job(7), _TYPE, outcome, released=True, draw=lambda: 0.0).delay_seconds == 60


def test_a_fault_of_ours_uses_up_no_try() -> None:
    outcome = classify(failed("our_resolver"), host="h")
    settled = decide(job(1), _TYPE, outcome, released=True)
    assert (settled.status, settled.refund_attempt, settled.outcome) == ("queued", True, "paused")


def test_a_stored_code_has_the_row_of_its_outcome() -> None:
    assert rule_of_code("http_503") == rule_of(503)
    assert rule_of_code("connect_failed") == FAULT_RULES["connect_failed"]
    assert rule_of_code(None).retry_class == "full"
    assert rule_of_code("http_404", overrides={"404": "none"}).retry_class == "none"


# -- explain -------------------------------------------------------------------------------------------------------


def test_explain_shows_class_delay_and_reason() -> None:
    explanation = explain("429", hint="120")
    assert (
        explanation.retry_class,
        explanation.next_try_seconds,
        explanation.endpoint_rests_seconds,
        explanation.tries,
    ) == (
        "full",
        120,
        120,
        10,
    )
    assert "too many" in explanation.why
    assert explain("404", attempt=2).next_try_seconds == 600
    assert explain("404", attempt=5).next_try_seconds is None
    assert explain("400").next_try_seconds is None
    assert explain("connect_failed").next_try_seconds == 5


@pytest.mark.parametrize("what", ["99", "600", "", "no_such_fault", "４２９"])
def test_explain_refuses_other_words(what: str) -> None:
    with pytest.raises(EventInvalid, match="connect_failed"):
        explain(what)
