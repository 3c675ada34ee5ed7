"""`effects email …`."""

from __future__ import annotations

import click


@click.group()
def email() -> None:
    """Templates, previews, suppressions and transports."""
