"""The command line that leads to an app's database: for advice that is followed in a shell."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Any

from sqlalchemy import URL
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from effects.settings import DEFAULT_DATABASE_URL
from effects.store.db.urls import describe_database, file_of, without_password


def command_line(app: object, url: URL, schema: str | None) -> str:
    """`effects`, with the options that a shell of this environment needs to work on the same database.

    By `--app` where a module holds the app, so that the command knows its job types and schedules. A password is never
    part of it: PASSWORD stands in its place.
    """
    path = _import_path(app)
    if path is not None:
        return "effects" if path == os.environ.get("EFFECTS_APP") else f"effects --app {path}"
    options = [] if _is_of_environment(url) else ["--database-url", _shown(url)]
    if schema is not None and schema != os.environ.get("EFFECTS_SCHEMA"):
        options += ["--schema", schema]
    return shlex.join(["effects", *options])


def _import_path(app: object) -> str | None:
    """`module:attribute` by which a command can import the app; of the script that runs, by the name of its file."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("effects", "tests"):
            continue
        attribute = next((key for key, value in list(_names_of(module).items()) if value is app), None)
        path = _name_of_script(module) if name == "__main__" else name
        if attribute is not None and path is not None:
            return f"{path}:{attribute}"
    return None


def _names_of(module: Any) -> dict[str, Any]:
    names = getattr(module, "__dict__", None)
    return names if isinstance(names, dict) else {}


def _name_of_script(module: Any) -> str | None:
    spec, file = getattr(module, "__spec__", None), getattr(module, "__file__", None)
    if spec is not None:  # `python -m shop.run`
        name = str(spec.name)
        return name.removesuffix(".__main__")
    path = None if file is None else Path(file)
    return path.stem if path is not None and path.parent.resolve() == Path.cwd() and path.suffix == ".py" else None


def _is_of_environment(url: URL) -> bool:
    """Whether a command without options works on this database."""
    try:
        named = make_url(os.environ.get("EFFECTS_DATABASE_URL") or DEFAULT_DATABASE_URL)
    except ArgumentError:
        return False
    if named.get_backend_name() != url.get_backend_name():
        return False
    if named.get_backend_name() == "sqlite":
        return file_of(named) == file_of(url)
    return describe_database(named) == describe_database(url)


def _shown(url: URL) -> str:
    if url.get_backend_name() == "sqlite":
        file = file_of(url)
        return url.render_as_string() if file is None else f"sqlite:///{file}"
    return without_password(url.set(drivername="postgresql").render_as_string(hide_password=False))
