"""The app of downloads, asked as a client of HTTP does."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import httpx

from effects import Effects
from effects_reports import download_app

BASE = "https://shop.example/downloads"


def ask(
    app: Effects, url: str, method: str = "GET", headers: Mapping[str, str] | None = None, *, who: str | None = None
) -> httpx.Response:
    """The app's answer, as a client of HTTP sees it."""

    async def fetch() -> httpx.Response:
        served: Any = download_app(effects=app, principal=None if who is None else lambda scope: who)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(served)) as client:
            return await client.request(method, url, headers=dict(headers or {}))

    return asyncio.run(fetch())
