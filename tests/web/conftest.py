"""An app with jobs in every state, and its dashboard for each role."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import pytest

from effects import Done, Effects, Refused, Unknown, enqueue
from effects.store.limits import key_limits as limit_rows
from effects.web import Dashboard, PageRequest, Person, dashboard
from effects.web.security import Role
from tests.conftest import AppFactory
from tests.support.manual_workers import ManualWorker
from tests.support.scripted import Script, Scripted
from tests.web.browsing import Visitor
from tests.web.filled import FilledShops
from tests.web.full_shop import HELD, FullShop, partner


@dataclass(frozen=True)
class Shop:
    """An app, and a job in each state."""

    app: Effects
    queued: int
    dead: int
    unknown: int
    done: int


Visiting: TypeAlias = Callable[..., Visitor]


@pytest.fixture
def shop(app_factory: AppFactory) -> Shop:
    app = app_factory(job_types=[Scripted(), Scripted(HELD, on_unknown="hold")])
    worker = ManualWorker(app, "w1")

    def end(job_type: str, key: str, outcome: object, *, released: bool = False) -> int:
        job_id = enqueue(job_type, Script(name=key), key=key, effects=app).job_id
        job = worker.claim_one()
        if released:
            worker.release(job)
        worker.settle((job, outcome), released=released)  # type: ignore[arg-type]
        return int(job_id)

    dead = end("scripted", "dead:1", Refused("no", code="refused_by_peer"))
    unknown = end(HELD, "charge:1", Unknown("no reply"), released=True)
    done = end("scripted", "done:1", Done())
    with app.store.begin() as connection:
        limit_rows.set_limit(app.store, connection, "smtp", actor="test", max_in_flight=4)
    queued = enqueue("scripted", Script(), key="waits:1", limit_key="smtp", effects=app).job_id
    return Shop(app, queued=int(queued), dead=dead, unknown=unknown, done=done)


@pytest.fixture
def visiting(shop: Shop) -> Iterator[Visiting]:
    """Makes a person who visits: `visiting("operator")`; None: nobody is known."""
    open_ones: list[Dashboard] = []

    def make(role: Role | None = "operator", *, personal: bool = False, name: str = "ann") -> Visitor:
        def guard(request: PageRequest) -> Person | None:
            return None if role is None else Person(name, role=role, personal=personal)

        board = dashboard(guard=guard, effects=shop.app)
        open_ones.append(board)
        return Visitor(board)

    yield make
    for board in open_ones:
        board.close()


@pytest.fixture(scope="session")
def filled_shops(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FilledShops]:
    """What `full` copies."""
    with partner() as receiver:
        shops = FilledShops(tmp_path_factory.mktemp("filled"), receiver)
        yield shops
        shops.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def full(request: pytest.FixtureRequest, tmp_path: Path, filled_shops: FilledShops) -> Iterator[FullShop]:
    """A shop with something on every page, once on each database."""
    names = ("postgresql_server", "postgresql_template") if request.param == "postgresql" else ()
    server, template = (request.getfixturevalue(name) for name in names) if names else (None, None)
    with filled_shops.copy(tmp_path, server, template) as shop:
        yield shop
