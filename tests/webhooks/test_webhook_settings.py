"""Settings of webhooks: read from the environment, checked when made."""

from __future__ import annotations

import pytest

from effects import ConfigurationError
from effects_webhooks.settings import WebhookSettings


@pytest.mark.parametrize(("text", "value"), [("Yes", True), ("off", False), ("", False)])
def test_a_flag_is_read_from_the_environment(text: str, value: bool) -> None:
    settings = WebhookSettings.from_environment({"EFFECTS_ALLOW_PRIVATE_ADDRESSES": text})
    assert settings.allow_private_addresses is value
    assert bool(settings.risks()) is value


def test_a_flag_that_is_neither_names_its_variable() -> None:
    with pytest.raises(ConfigurationError, match="EFFECTS_ALLOW_PRIVATE_ADDRESSES is 'maybe'; give true or false"):
        WebhookSettings.from_environment({"EFFECTS_ALLOW_PRIVATE_ADDRESSES": "maybe"})


def test_what_the_caller_gives_comes_first() -> None:
    environ = {"EFFECTS_PRIVATE_NETWORKS": "10.0.0.0/8", "EFFECTS_WEBHOOK_NOTICE_JOB_TYPE": "ops.tell"}
    settings = WebhookSettings.from_environment(environ, private_networks="10.1.0.0/16", webhook_notice_job_type=None)
    assert (settings.private_networks, settings.webhook_notice_job_type) == ("10.1.0.0/16", "ops.tell")
