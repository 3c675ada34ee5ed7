"""From Django's settings to the project's Effects."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.conf import settings
from django.core.exceptions import AppRegistryNotReady
from django.db import DEFAULT_DB_ALIAS, connections
from django.utils.module_loading import module_has_submodule
from sqlalchemy import URL, event

from effects.contrib.django.aliases import is_in_memory, url_of
from effects.contrib.django.project import ProjectEffects, go_through_django, is_through_django, leave_django
from effects.errors import ConfigurationError
from effects.packages import declared_options
from effects.store.db.urls import database_url
from effects.text.wording import described

if TYPE_CHECKING:
    from sqlalchemy import Engine

ALIAS = DEFAULT_DB_ALIAS
_NO_FILE = "sqlite:////in-memory/of-django.db"  # in place of a database in memory, which has no URL for others


def project_app() -> ProjectEffects:
    """The project's Effects.

    Raises:
        ConfigurationError: Django is not set up yet, or does not have `effects.contrib.django` in INSTALLED_APPS.
    """
    try:
        app: ProjectEffects | None = apps.get_app_config("effects").app
    except (AppRegistryNotReady, LookupError, AttributeError):
        app = None
    if app is None:
        raise ConfigurationError(
            "the project's Effects is there once Django is set up, with 'effects.contrib.django' in INSTALLED_APPS: "
            "import it in jobs.py or a view, not in models.py"
        )
    return app


def make_app() -> ProjectEffects:
    """Make the Effects of the settings, with what the project's apps declare.

    Raises:
        ConfigurationError: a setting or a declaration is wrong; names it.
    """
    values = getattr(settings, "EFFECTS", {})
    if not isinstance(values, dict):
        raise ConfigurationError(f'EFFECTS is {described(values)}; give a dict, such as {{"email_from": "…"}}')
    options = {name: value for name, value in values.items() if name != "alias"}
    if refused := {"database_url", "engine", "settings"} & set(options):
        raise ConfigurationError(f'EFFECTS has {sorted(refused)[0]!r}; name one of DATABASES by "alias" instead')
    alias = values.get("alias", ALIAS)
    if alias not in connections:
        raise ConfigurationError(f"EFFECTS: alias is {alias!r}, and DATABASES has {', '.join(sorted(connections))}")
    url = url_of(alias, connections[alias].settings_dict)
    declared = declared_options(_modules, [Path(config.path) for config in apps.get_app_configs()])
    text = _NO_FILE if is_in_memory(url) else _text(url)
    app = ProjectEffects(alias, text, **{**declared, **options})
    for engine in app.store.engines:
        _connect_to_current_url(engine)
    follow(app, connections[alias])
    return app


def follow(app: ProjectEffects, connection: Any) -> None:
    """Let the Effects go where this connection of Django goes; to one in memory, through the connection itself."""
    url = url_of(connection.alias, connection.settings_dict)
    if is_in_memory(url):
        if not is_through_django(app.store):
            go_through_django(app.store, app.alias)
            _go_to(app, url)
        return
    text = _text(url)
    target = database_url(text)
    if target == app.engine.url:
        return
    leave_django(app.store)
    app.settings = replace(app.settings, database_url=text)
    _go_to(app, target)


def _go_to(app: ProjectEffects, url: URL) -> None:
    for engine in app.store.engines:
        engine.url = url
        engine.dispose()


def _connect_to_current_url(engine: Engine) -> None:
    """Open connections to what `engine.url` names then, with all else that the engine was made with."""
    _, former = engine.dialect.create_connect_args(engine.url)

    @event.listens_for(engine, "do_connect", insert=True)
    def connect(dialect: Any, record: Any, arguments: list[Any], options: dict[str, Any]) -> None:
        current_arguments, current = dialect.create_connect_args(engine.url)
        arguments[:] = current_arguments
        for name in former:
            options.pop(name, None)
        options.update(current)


def _modules(name: str) -> list[ModuleType]:
    """The modules of this name in the project's apps."""
    return [
        import_module(f"{config.name}.{name}")
        for config in apps.get_app_configs()
        if config.module is not None and module_has_submodule(config.module, name)
    ]


def _text(url: URL) -> str:
    return url.render_as_string(hide_password=False)
