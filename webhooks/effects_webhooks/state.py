"""What webhooks keep of one Effects: settings, declared event types, and which private addresses they open."""

from __future__ import annotations

from effects import Effects
from effects_webhooks.settings import WebhookSettings


class WebhookState:
    """Of one Effects; made once, when first needed."""

    def __init__(self, app: Effects) -> None:
        self.settings: WebhookSettings = app.packages["webhooks"]
        self.allow_private = self.settings.reachable()
        self.event_types = self.settings.event_types()


def state_of(app: Effects) -> WebhookState:
    """The state of webhooks in this Effects."""
    return app.state(WebhookState)
