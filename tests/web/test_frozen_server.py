"""Goal: a server that hangs costs a page some seconds, and never one of the dashboard's few threads."""

from __future__ import annotations

import pytest

from effects.store.db.deadlines import Bounds
from effects.web import Person, dashboard, database
from tests.conftest import AppFactory
from tests.peers.proxy import Proxy
from tests.web.browsing import Visitor


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_page_does_not_wait_for_a_frozen_server_for_ever(
    app_factory: AppFactory, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "WATCH_SECONDS", 0.1)
    monkeypatch.setattr("effects.web.application.PAGE_BOUNDS", Bounds(0.5, 0.5))
    behind = app_factory(f"{proxy.url}&connect_timeout=2")
    board = dashboard(guard=lambda request: Person("ann", role="viewer"), effects=behind)
    visitor = Visitor(board)
    assert visitor.get("/schedules").status_code == 200
    proxy.freeze()
    answer = visitor.get("/schedules")
    proxy.thaw()
    assert (answer.status_code, "cannot be reached" in answer.text) == (503, True)
    assert visitor.get("/schedules").status_code == 200
    board.close()
