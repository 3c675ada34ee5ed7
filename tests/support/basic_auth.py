"""The password of a provider's webhook, and its header."""

from __future__ import annotations

import base64

PASSWORD = "correct horse battery staple"


def with_password(password: str = PASSWORD, user: str = "effects") -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}
