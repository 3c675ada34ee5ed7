"""Chromium at the dashboard: a full shop, an empty one, and one whose database is broken, each on loopback."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pytest
import uvicorn
from playwright.sync_api import sync_playwright
from sqlalchemy import text

from effects import Effects
from effects.web import Dashboard, Person, dashboard
from tests.support.needs import program
from tests.web.full_shop import FullShop, fill, full_app, pages_of, partner

State: TypeAlias = Literal["full", "empty", "error"]
ZONE = "Asia/Kolkata"
VIEWPORTS = {320: {"width": 320, "height": 740}, 1280: {"width": 1280, "height": 900}}


@dataclass(frozen=True)
class Served:
    """A dashboard on loopback."""

    url: str
    board: Dashboard


@contextmanager
def serving(app: Effects) -> Iterator[Served]:
    """A server in a thread, for an admin who may see what is personal."""
    board = dashboard(guard=lambda request: Person("ann", role="admin", personal=True), effects=app, title="Shop")
    board.site.readings.patience = 60.0  # on a busy machine no page of these tests is the one that says that it counts
    config = uvicorn.Config(board, port=0, log_level="error", lifespan="off", ws="none")
    server, listener = uvicorn.Server(config), config.bind_socket()
    listener.listen()
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield Served(f"http://127.0.0.1:{listener.getsockname()[1]}", board)
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
        board.close()


@pytest.fixture(scope="module")
def shops(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """State → its dashboard; and the full shop under `shop`. Tests that act have one of their own."""
    with ExitStack() as stack:
        served: dict[str, Any] = {}
        for state in ("full", "empty", "error"):
            app = stack.enter_context(made(tmp_path_factory.mktemp(state)))
            if state == "full":
                with partner() as receiver:
                    served["shop"] = fill(app, receiver)
            if state == "error":
                broken(app)
            served[state] = stack.enter_context(serving(app))
        yield served


@contextmanager
def made(folder: Path) -> Iterator[Effects]:
    with opened(folder) as app:
        app.create_tables()
        yield app


@contextmanager
def opened(folder: Path) -> Iterator[Effects]:
    app = full_app(f"sqlite:///{folder / 'shop.db'}", folder)
    yield app
    app.dispose()


def broken(app: Effects) -> None:
    """Take away what each page reads."""
    with app.store.begin() as connection:
        for name in ("unresolved", "jobs", "workers", "limits", "rollups", "samples", "audit_log", "sent_emails",
                     "email_suppressions", "webhook_endpoints", "webhook_events", "delivered_webhooks",
                     "generated_reports", "report_runs", "report_buckets", "bulk_actions", "queues",
                     "job_history"):  # fmt: skip
            connection.execute(text(f"ALTER TABLE {getattr(app.store.sql, name)} RENAME TO away_{name}"))


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[FullShop, Path]:
    """A full shop that is closed, and its folder, to be copied."""
    folder = tmp_path_factory.mktemp("filled")
    with made(folder) as app, partner() as receiver:
        shop = fill(app, receiver)
    return shop, folder


@pytest.fixture
def acting(filled: tuple[FullShop, Path], tmp_path: Path) -> Iterator[tuple[FullShop, str]]:
    """A full shop of this test's own, and its address."""
    shop, folder = filled
    own = tmp_path / "shop"
    shutil.copytree(folder, own)
    with opened(own) as app, serving(app) as served:
        yield replace(shop, app=app), served.url


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """Of a module: while Playwright runs, its thread has an event loop, which other tests cannot have."""
    path = program("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


Opening: TypeAlias = Callable[..., Any]


@pytest.fixture
def opening(chromium: Any) -> Iterator[Opening]:
    """Opens a page of a browser of its own; what goes wrong in it fails the test.

    `opening(scheme="dark", width=320, script=False)`; what was refused by the policy is in `page.refused`.
    """
    contexts: list[Any] = []

    def make(scheme: str = "light", width: int = 1280, *, script: bool = True, bypass: bool = False) -> Any:
        context = chromium.new_context(
            color_scheme=scheme, viewport=VIEWPORTS[width], java_script_enabled=script, timezone_id=ZONE,
            bypass_csp=bypass, reduced_motion="reduce",
        )  # fmt: skip
        contexts.append(context)
        page = context.new_page()
        page.refused, page.foreign = [], []
        page.on("console", lambda line: page.refused.append(line.text) if "Content Security" in line.text else None)
        page.on("pageerror", lambda error: page.refused.append(str(error)))
        page.on("dialog", lambda dialog: (page.refused.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: page.foreign.append(request.url) if "127.0.0.1" not in request.url
                and not request.url.startswith("data:") else None)  # fmt: skip
        return page

    yield make
    for context in contexts:
        context.close()


def paths(shops: dict[str, Any], state: State) -> list[str]:
    """Every page; where there is no shop, those that need no row."""
    every = pages_of(shops["shop"])
    return every if state == "full" else [path for path in every if not any(part in path for part in "0123456789")]
