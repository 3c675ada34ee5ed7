"""A shop whose bounces come back to a domain of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from effects import Effects
from effects.keys.encryption import generate_key
from effects_email import EmailReceipt, send_email
from effects_email.returned.token import bounce_address
from tests.conftest import AppFactory

DOMAIN = "bounces.shop.example"
KEYS = f"k1={generate_key()},digest={generate_key()}"
Written: TypeAlias = Callable[..., EmailReceipt]


@pytest.fixture
def shop(app_factory: AppFactory, tmp_path: Path) -> Effects:
    return app_factory(
        job_types=[], keys=KEYS, email_from="Shop <hello@shop.example>", email_bounce_domain=DOMAIN,
        smtp_url=f"maildir:{tmp_path}/sent",
    )  # fmt: skip


@pytest.fixture
def written(shop: Effects) -> Written:
    """`written("ann@example.org")`: a message."""

    def write(to: Any, **options: Any) -> EmailReceipt:
        return send_email(to=to, subject="Your order", text="It is on its way.", effects=shop, **options)

    return write


def address_of(app: Effects, receipt: EmailReceipt, number: int | None = 0) -> str:
    """Where the bounces of a message come to."""
    return bounce_address(app, DOMAIN, job_id=receipt.job_id, message_id=receipt.message_id, number=number)
