"""Several hosts in a URL: both forms, the server that takes writes, and whom a connection asks first."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import sqlalchemy as sa

from effects.store.db.engine import HostMemory, create_engine

LISTS = ["u@h1:1,h2:2/q", "u@/q?host=h1:1&host=h2:2", "u@/q?host=h1,h2&port=1,2"]


def _parameters(engine: sa.Engine) -> dict[str, Any]:
    return engine.dialect.create_connect_args(engine.url)[1]


@pytest.mark.parametrize("listed", LISTS)
def test_the_writable_one_of_several_hosts_is_used(listed: str) -> None:
    parameters = _parameters(create_engine(f"postgresql://{listed}"))
    assert (parameters["host"], parameters["port"]) == ("h1,h2", "1,2")
    assert parameters["target_session_attrs"] == "read-write"


def test_the_urls_own_option_wins() -> None:
    url = "postgresql://u@h1,h2/q?target_session_attrs=any"
    assert _parameters(create_engine(url))["target_session_attrs"] == "any"


def test_a_single_host_is_not_queried() -> None:
    assert "target_session_attrs" not in _parameters(create_engine("postgresql://u@h1/q"))


class _Info(NamedTuple):
    host: str
    port: int


class _Driver(NamedTuple):
    info: _Info


@pytest.mark.parametrize(
    ("hosts", "ports", "then"),
    [
        ("h1,h2", "1,2", ("h2,h1", "2,1")),
        ("h1,h2,h3", "2", ("h2,h1,h3", "2,2,2")),
        ("h1,h2", None, ("h2,h1", ",")),
        ("h3,h4", "3,4", ("h3,h4", "3,4")),
        ("h1", "1", ("h1", "1")),
    ],
)
def test_a_connection_tries_the_last_good_host_first(hosts: str, ports: str | None, then: tuple[str, str]) -> None:
    memory = HostMemory()
    parameters: dict[str, Any] = {"host": hosts, **({"port": ports} if ports else {})}
    memory.order(None, None, [], parameters)
    assert parameters["host"] == hosts  # before the first answer, in the order of the URL
    memory.remember(_Driver(_Info("h2", 2)), None)
    memory.order(None, None, [], parameters)
    assert (parameters["host"], parameters["port"]) == then


def test_our_engines_remember_the_last_good_host(postgresql_server: str) -> None:
    """The host of the server is asked first, though the URL begins with one where no one listens."""
    url = sa.engine.make_url(postgresql_server)
    socket = str(url.query["host"])
    engine = create_engine(f"postgresql://{url.username}@/{url.database}?host=127.0.0.1,{socket}&port=1,5432")
    seen: list[str] = []
    sa.event.listen(
        engine, "do_connect", lambda dialect, record, arguments, parameters: seen.append(parameters["host"])
    )
    for _ in range(2):
        with engine.connect() as connection:
            connection.detach()
    engine.dispose()
    assert [hosts.split(",")[0] for hosts in seen] == ["127.0.0.1", socket]
