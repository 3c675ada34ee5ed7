"""What is printed or logged of our objects holds no secret: no password, no key."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from effects import Effects, Settings
from effects.keys.encryption import KeyRing

SECRET = base64.b64encode(b"canary" * 5 + b"ab").decode()
URL = "postgresql://app:hunter2@db.example/shop"
SETTINGS = Settings(database_url=URL, keys=f"a={SECRET}")


@pytest.mark.parametrize("thing", [SETTINGS, KeyRing(f"a={SECRET}")], ids=lambda thing: type(thing).__name__)
@pytest.mark.parametrize("show", [repr, str, "{}".format, "{!r}".format])
def test_a_repr_keeps_the_secret(thing: object, show: object) -> None:
    shown = show(thing)  # type: ignore[operator]
    assert "hunter2" not in shown
    assert SECRET not in shown
    assert "canary" not in shown


def test_an_apps_repr_names_it_and_shows_no_secret(tmp_path: Path) -> None:
    app = Effects(f"sqlite:///{tmp_path / 'x.db'}", keys=f"a={SECRET}")
    assert SECRET not in repr(app)
    assert "x.db" in repr(app)
    remote = Effects(settings=SETTINGS)
    assert "hunter2" not in repr(remote)
    assert "db.example" in repr(remote)
    for each_app in (app, remote):
        each_app.dispose()
