"""Settings of webhooks: frozen, checked when made, from the environment or from `Effects(…)`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from effects.extend import PackageSettings
from effects_webhooks.transport.guard import Private, private_networks


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

    Raises:
        ConfigurationError: names the variable and what it may hold.
    """

    allow_private_addresses: bool = False
    private_networks: str = ""
    webhook_notice_job_type: str = ""

    def __post_init__(self) -> None:
        self.reachable()

    def reachable(self) -> Private:
        """The private addresses that requests may go to: all, or those of some networks."""
        return self.allow_private_addresses or private_networks(self.private_networks)

    def risks(self) -> Mapping[str, str]:
        if not self.allow_private_addresses:
            return {}
        risk = "EFFECTS_ALLOW_PRIVATE_ADDRESSES is on: webhooks may reach this network"
        return {risk: "unset it, unless every endpoint is your own"}
