"""Settings of installed packages, and what a job type does before and after a worker: the core knows none of them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from effects import ConfigurationError, Effects, Settings, enqueue
from effects.app.packages import package_settings, split_options
from effects.worker import Worker
from tests.conftest import AppFactory
from tests.support.manual_workers import row
from tests.support.scripted import Scripted


def test_options_go_to_their_package() -> None:
    own, others = split_options({"threads": 3, "templates": "emails", "colour": "red"})
    assert (own, others) == ({"threads": 3}, {"templates": "emails", "colour": "red"})
    assert package_settings({}, {"templates": "emails"})["email"].templates == "emails"
    with pytest.raises(ConfigurationError, match="no option 'colour'"):
        package_settings({}, others)


def test_the_environment_is_read_where_no_option_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EFFECTS_EMAIL_FROM", "env@shop.example")
    monkeypatch.setenv("EFFECTS_EMAIL_REDIRECT", "team@shop.example")
    url = f"sqlite:///{tmp_path / 'x.db'}"
    configured = Effects(url, email_from="given@shop.example").packages["email"]
    assert (configured.email_from, configured.email_redirect) == ("given@shop.example", "team@shop.example")
    plain = Effects(settings=Settings(database_url=url)).packages["email"]
    assert (plain.email_from, plain.email_redirect) == (None, None)


class PackageState:
    """What a package keeps for one Effects."""

    def __init__(self, app: Effects) -> None:
        self.app = app


class StateOnState:
    """A state made of another one."""

    def __init__(self, app: Effects) -> None:
        self.base = app.state(PackageState)


def test_a_package_has_one_state_for_each_effects(app_factory: AppFactory) -> None:
    app = app_factory()
    state = app.state(PackageState)
    assert state.app is app
    assert app.state(PackageState) is state
    assert app.state(StateOnState).base is state
    assert Effects(settings=app.settings, engine=app.engine).state(PackageState) is not state


def test_threads_that_ask_for_a_state_at_once_get_the_same(app_factory: AppFactory) -> None:
    app, barrier, made_by = app_factory(), threading.Barrier(4), []

    def make(_: Effects) -> object:
        made_by.append(threading.get_ident())
        return object()

    def ask() -> object:
        barrier.wait()
        return app.state(make)

    with ThreadPoolExecutor(4) as threads:
        states = {future.result() for future in [threads.submit(ask) for _ in range(4)]}
    assert (len(states), len(made_by)) == (1, 1)


def test_a_state_that_could_not_be_made_is_call_site_the_next_call(app_factory: AppFactory) -> None:
    app, faults = app_factory(), [ConfigurationError("no folder")]

    def make(_: Effects) -> str:
        if faults:
            raise faults.pop()
        return "state"

    with pytest.raises(ConfigurationError, match="no folder"):
        app.state(make)
    assert app.state(make) == "state"


class Watched(Scripted):
    """Notes when a worker starts and ends."""

    wrong = False

    def worker_starts(self) -> None:
        if self.wrong:
            raise ConfigurationError("the relay's address is wrong")
        self.order.append("starts")

    def worker_ends(self) -> None:
        self.order.append("ends")


@pytest.mark.slow
def test_a_job_type_is_called_before_the_first_claim_and_after_the_last_attempt(app_factory: AppFactory) -> None:
    watched = Watched()
    app = app_factory(job_types=[watched])
    enqueue("scripted", {"name": "job"}, effects=app)
    Worker(app).drain(30)
    assert watched.order == ["starts", "job", "ends"]


def test_a_worker_whose_job_type_is_set_up_wrongly_claims_nothing(app_factory: AppFactory) -> None:
    watched = Watched()
    watched.wrong = True
    app = app_factory(job_types=[watched])
    enqueue("scripted", {}, effects=app)
    with pytest.raises(ConfigurationError, match="the relay's address is wrong"):
        Worker(app).drain(30)
    assert (row(app, "jobs")["status"], row(app, "jobs")["attempts"]) == ("queued", 0)
