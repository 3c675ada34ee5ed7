"""`effects why` finds an effect by any of its names, and shows its destination."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from effects import Effects, Retry, Snooze
from effects_webhooks import add_endpoint
from tests.cli.conftest import Answer
from tests.conftest import AppFactory
from tests.support.commands import command, error_line
from tests.support.effect_states import Effect, EffectStates, effects_app


@pytest.fixture
def states(app_factory: AppFactory, tmp_path: Path) -> EffectStates:
    return EffectStates(effects_app(app_factory, tmp_path))


def why(app: Effects, name: object) -> Answer:
    answer = command(app, "why", name)
    assert answer.exit_code == 0, answer
    return answer


def test_a_webhook_by_its_names(states: EffectStates) -> None:
    effect: Effect = states.make("webhook", "refused")
    event_id = str(effect.name).partition(":")[0]
    for name in (effect.name, event_id, effect.endpoint, "https://partner.example/in", effect.newest, "webhook 1"):
        out = why(states.app, name).out
        assert out.startswith(f"{effect.name} (webhook.deliver) was refused"), name
        assert "endpoint  https://partner.example/in\n" in out
    document = command(states.app, "why", event_id, "--json").json
    assert document[0]["facts"]["about"] == {"endpoint": "https://partner.example/in"}
    assert "endpoint  https://partner.example/in\n" in command(states.app, "jobs", "show", effect.newest).out


def test_mail_by_its_address(states: EffectStates) -> None:
    states.make("email", "refused")
    for name in ("ann@example.com", "ANN@Example.com", "email 1"):
        assert why(states.app, name).out.startswith("email 1 (email.send) was refused")
    assert "bob@example.com" in error_line(command(states.app, "why", "bob@example.com"))


def test_a_job_without_a_key_by_its_id(states: EffectStates) -> None:
    effect = states.make("keyless", "refused")
    assert why(states.app, effect.newest).out.startswith(f"job {effect.newest} (held) was refused")
    assert "no effect with key '4711'" in error_line(command(states.app, "why", 4711))


def test_an_endpoint_without_deliveries_is_named(states: EffectStates) -> None:
    endpoint = add_endpoint("https://new.example/in", ["a.b"], effects=states.app).id
    line = error_line(command(states.app, "why", "https://new.example/in"))
    assert f"endpoint {endpoint} (https://new.example/in) has had no delivery yet" in line


def test_missing_job_types_of_the_workers_are_reported(states: EffectStates) -> None:
    """In status, doctor and why, by the name of the setting."""
    job_id = states.make("email", "waiting").newest
    reason = "the mail transport 'default' is not set: give EFFECTS_SMTP_URL"
    states.end("email", Snooze(60, reason, ages=False, code="waits_for_operator"))
    status = command(states.app, "status")
    assert re.search(
        rf"^ *1 +email.send: 1 job waits for an operator: {reason}; next try at ", status.out, re.MULTILINE
    )
    [held] = command(states.app, "status", "--json").json["held_up"]
    assert (held["kind"], held["name"], held["reason"], held["jobs"]) == ("operator", "email.send", reason, 1)
    doctor = command(states.app, "doctor", "--quiet").out
    assert f"email.send: 1 job waits for an operator: {reason}" in doctor
    assert f"waits for an operator: {reason}; a worker looks again at " in why(states.app, job_id).out
    most = states.app.job_types.get("email.send").retry.max_attempts
    assert f"max attempts      {most} (of its job type)\n" in command(states.app, "jobs", "show", job_id).out


def test_doctor_names_the_pause_that_mail_waits_for(states: EffectStates) -> None:
    """In cron mode too, where no worker runs between two drains."""
    states.make("email", "waiting")
    reason = "no connection to the server (127.0.0.1:1): Connection refused"
    states.end("email", Retry(reason, code="connect_failed", pause_seconds=900))
    answer = command(states.app, "doctor")
    [line] = [line for line in answer.out.splitlines() if "limit keys" in line]
    assert "email:default is paused until" in line
    assert f": {reason}; 1 job waits" in line
    assert "`effects limits resume email:default`" in line
    assert command(states.app, "limits", "resume", "email:default").exit_code == 0
