"""`effects reports …`."""

from __future__ import annotations

import click


@click.group()
def reports() -> None:
    """Request, watch and download reports."""
