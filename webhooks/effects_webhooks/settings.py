"""Settings of webhooks: frozen, checked when made, from the environment or from `Effects(…)`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from effects import ConfigurationError, Effects
from effects.extend.arguments import arguments
from effects.extend.http import Private, private_networks
from effects.extend.jobs import PackageSettings
from effects_webhooks.request import EventType, EventTypes


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSettings(PackageSettings):
    """What an operator may set about webhooks.

    Args:
        allow_private_addresses: EFFECTS_ALLOW_PRIVATE_ADDRESSES, let webhooks reach loopback and private networks.
            Default no.
        private_networks: EFFECTS_PRIVATE_NETWORKS, comma-separated networks, such as `10.1.0.0/16`, which webhooks may
            reach although they are private. Default none.
        webhook_notice_job_type: EFFECTS_WEBHOOK_NOTICE_JOB_TYPE, the job type that is enqueued when an endpoint has
            failed for 1, 24 and 72 hours, and when it is disabled. Its payload takes `notice` (`failing` or
            `disabled`), `endpoint_id`, `reason`, `failing_seconds` and `failed_messages`. Default none: only the log
            reports it.
        webhook_event_types: the types of events that the app sends. They are code: none come from the environment.
            Default none: every type is taken.

    Raises:
        ConfigurationError: names the variable and what it may hold.
    """

    allow_private_addresses: bool = False
    private_networks: str = ""
    webhook_notice_job_type: str = ""
    webhook_event_types: Sequence[EventType] = ()

    def __post_init__(self) -> None:
        super(WebhookSettings, self).__post_init__()
        self.reachable()
        self.event_types()

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], **overrides: Any) -> WebhookSettings:
        """The environment's settings, with those of the caller (and not None) on top."""
        own = {name: text for name, text in environ.items() if name != "EFFECTS_WEBHOOK_EVENT_TYPES"}
        return super(WebhookSettings, cls).from_environment(own, **overrides)

    def event_types(self) -> EventTypes:
        """Those that are declared."""
        declared = self.webhook_event_types
        if isinstance(declared, EventType) or arguments.listed(declared) is not None:
            raise ConfigurationError("webhook_event_types: give a list, such as [EventType('order.paid')]")
        return EventTypes(declared)

    def reachable(self) -> Private:
        """The private addresses that requests may go to: all, or those of some networks."""
        return self.allow_private_addresses or private_networks(self.private_networks, "EFFECTS_PRIVATE_NETWORKS")

    def risks(self) -> Mapping[str, str]:
        if not self.allow_private_addresses:
            return {}
        risk = "EFFECTS_ALLOW_PRIVATE_ADDRESSES is on: webhooks may reach this network"
        return {risk: "unset it, unless every endpoint is your own"}


class WebhookState:
    """Of one Effects; made once, when first needed."""

    def __init__(self, app: Effects) -> None:
        self.settings: WebhookSettings = app.packages["webhooks"]
        self.allow_private = self.settings.reachable()
        self.event_types = self.settings.event_types()


def state_of(app: Effects) -> WebhookState:
    """The state of webhooks in this Effects."""
    return app.state(WebhookState)
