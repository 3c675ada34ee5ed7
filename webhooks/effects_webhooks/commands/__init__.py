"""`effects webhooks`: the entry point `effects.commands`."""

from __future__ import annotations

import click

from effects_webhooks.commands.deliveries import deliveries_, event_types_, events_, explain_
from effects_webhooks.commands.endpoints import endpoints, secrets
from effects_webhooks.commands.listen import listen
from effects_webhooks.commands.send import send, test


@click.group()
def webhooks() -> None:
    """Manage endpoints; send and receive webhooks."""


for _command in (
    endpoints, secrets, deliveries_, events_, event_types_, send, test, explain_, listen,
):  # fmt: skip
    webhooks.add_command(_command)
