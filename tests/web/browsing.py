"""A person at the dashboard: keeps cookies, follows redirects, and submits the forms that a page has."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from html.parser import HTMLParser
from typing import Any

import httpx

from effects.web.application import Dashboard

BASE = "http://shop.test"
TICKED = ("radio", "checkbox")  # left out, as a browser leaves them out where no one has ticked them
SAME_ORIGIN = {"sec-fetch-site": "same-origin"}


def plain(html: str) -> str:
    """The words of a page."""
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


class _Forms(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.forms: list[dict[str, Any]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "form":
            self.forms.append({"action": values.get("action"), "method": values.get("method"), "fields": {}})
        elif (
            tag in ("input", "select")
            and self.forms
            and values.get("name")
            and values.get("type") not in ("radio", "checkbox")
        ):
            self.forms[-1]["fields"][values["name"]] = values.get("value") or ""


class Visitor:
    """Calls the dashboard by ASGI, in this process, below a mount."""

    def __init__(self, app: Dashboard | Any, *, base: str = BASE, mount: str = "") -> None:
        self.app, self.base, self.mount = app, base, mount
        self.cookies: dict[str, str] = {}
        self.asked: list[str] = []

    def send(self, method: str, path: str, *, again: bool = True, **options: Any) -> httpx.Response:
        """One request, with the cookies of those before it; no redirect is followed.

        Args:
            again: asked again, as a browser does, where the page says that it is counting.
        """
        headers = {**options.pop("headers", {})}
        if self.cookies:
            headers["cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())

        answer = self.ask(method, path, headers, options)
        while again and answer.status_code == 202:
            answer = self.ask(method, path, headers, options)
        self.asked.append(path)
        for name, value in answer.headers.multi_items():
            if name == "set-cookie":
                cookie, _, content = value.partition(";")[0].partition("=")
                self.cookies[cookie] = content
        return answer

    def ask(self, method: str, path: str, headers: dict[str, str], options: dict[str, Any]) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, root_path=self.mount)
            async with httpx.AsyncClient(transport=transport, base_url=self.base) as client:
                return await client.request(method, path, headers=headers, **options)

        return asyncio.run(ask())

    def with_own_name(self, headers: Mapping[str, str]) -> dict[str, str]:
        """With `{base}` and `{host}` as this visitor calls the dashboard."""
        host = self.base.partition("//")[2]
        return {name: value.replace("{base}", self.base).replace("{host}", host) for name, value in headers.items()}

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.send("GET", path, **options)

    def post(self, path: str, data: Mapping[str, str], **options: Any) -> httpx.Response:
        headers = {**SAME_ORIGIN, **options.pop("headers", {})}
        return self.send("POST", path, data=dict(data), headers=headers, **options)

    def form(self, path: str, action: str | None = None) -> dict[str, str]:
        """The fields of a page's form, by where it leads; default to the page itself."""
        target = action or f"{self.mount}{path.partition('?')[0]}"
        page = self.get(path)
        assert page.status_code == 200, page.text
        parser = _Forms()
        parser.feed(page.text)
        [form] = [form for form in parser.forms if form["action"] == target and form["method"] == "post"]
        fields: dict[str, str] = form["fields"]
        return fields

    def act(self, path: str, **fields: str) -> httpx.Response:
        """Open a page that asks, and press its button."""
        return self.post(path.partition("?")[0], {**self.form(path), **fields})

    def token(self) -> str:
        """The token of this person's forms."""
        field = re.search(r'name="form_token" value="([0-9a-f]{64})"', self.get("/settings").text)
        assert field is not None
        return field[1]
