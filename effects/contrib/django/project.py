"""The Effects of a Django project, from its settings and the database that they name by an alias.

It knows Django's transactions, and can go through Django's connection.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from asgiref.sync import sync_to_async
from django.apps import apps
from django.conf import settings
from django.core.exceptions import AppRegistryNotReady
from django.db import DEFAULT_DB_ALIAS, close_old_connections, connections, transaction
from django.utils.module_loading import module_has_submodule
from sqlalchemy import URL, Connection, event

from effects.app.effects import Effects
from effects.app.packages import declared_options
from effects.errors import ConfigurationError, SessionForgotten
from effects.kit.text.wording import described
from effects.model.job import Attempt
from effects.model.job_type import JobType
from effects.store.db.faults import translated
from effects.store.db.store import Store
from effects.store.db.urls import database_url, file_of
from effects.store.sessions.borrowed import borrowed, driver_of

if TYPE_CHECKING:
    from sqlalchemy import Engine


def close_connections_around(job_type: JobType[Any]) -> None:
    """Close connections that are broken or older than CONN_MAX_AGE around each attempt, as Django does per request.

    Those of an async handler are of the thread in which Django carries out the ORM calls of async code.
    """
    perform = job_type.perform

    def with_usable_connections(payload: Any, attempt: Attempt) -> Any:
        close_old_connections()
        try:
            return perform(payload, attempt)
        finally:
            close_old_connections()

    async def with_usable_connections_async(payload: Any, attempt: Attempt) -> Any:
        close = sync_to_async(close_old_connections)
        await close()
        try:
            return await cast("Awaitable[Any]", perform(payload, attempt))
        finally:
            await close()

    around = with_usable_connections_async if job_type.is_async else with_usable_connections
    job_type.perform = around  # type: ignore[method-assign]


INIT_COMMAND = "manage.py migrate"


def _init_command() -> str:
    return INIT_COMMAND


class ProjectEffects(Effects):
    """Made from Django's settings.

    Args:
        alias: of its database in `DATABASES`.
        *arguments, **options: of Effects.
    """

    _is_made = False

    def __init__(self, alias: str, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._is_made = True
        self.alias = alias
        self.store.init_command = _init_command

    def add(self, *job_types: JobType[Any]) -> None:
        """As that of `Effects`. Django's connections are closed around each attempt that may use them: what the
        packages do on the event loop uses none.
        """
        super().add(*job_types)
        for job_type in job_types:
            if self._is_made or not job_type.is_async:
                close_connections_around(job_type)

    @property
    def queues(self) -> Sequence[str]:
        """As those of `Effects`, and the QUEUES of our backends in TASKS."""
        return tuple(dict.fromkeys((*super().queues, *(queue for each in task_backends() for queue in each["QUEUES"]))))

    def current_session(self) -> Any:
        """Django's connection to our database, if a transaction is open on it."""
        connection = _connection_in_transaction(self.alias)
        return super().current_session() if connection is None else connection

    def _joinable(self) -> Any:
        """
        Raises:
            SessionForgotten: one is open on another database alone.
        """
        session = self.current_session()
        if session is None and (elsewhere := next(filter(_connection_in_transaction, connections), None)) is not None:
            raise SessionForgotten(
                f"atomic() is open on the database {elsewhere!r}, and the effects are in {self.alias!r}: open "
                f"transaction.atomic(using={self.alias!r}), or pass session=effects.ALONE if its effect must happen "
                "whatever becomes of that transaction"
            )
        return session


TASK_BACKEND = "effects.contrib.django.tasks.TaskBackend"


def task_backends() -> list[dict[str, Any]]:
    """The entries of TASKS that name our backend."""
    entries = getattr(settings, "TASKS", None) or {}
    return [{"QUEUES": (), **each} for each in entries.values() if each.get("BACKEND") == TASK_BACKEND]


def _connection_in_transaction(alias: str) -> Any:
    """This thread's connection of Django to a database, if it is in a transaction."""
    opened = (each for each in connections.all(initialized_only=True) if each.alias == alias)
    connection = next((each for each in opened if each.connection is not None), None)
    is_open = connection is not None and (connection.in_atomic_block or not connection.get_autocommit())
    return connection if is_open else None


def is_through_django(store: Store) -> bool:
    """Whether its statements go through Django's connection."""
    return "begin" in vars(store)


def go_through_django(store: Store, alias: str) -> None:
    """Let all statements of a store go through this thread's connection of Django.

    A transaction of ours is one of Django's, or a savepoint in it. There can be no worker: it has threads of its own.
    """

    @contextmanager
    def begin() -> Iterator[Connection]:
        with translated(_init_command), transaction.atomic(using=alias), _borrowed(alias) as connection:
            yield connection

    @contextmanager
    def reading(connect: object) -> Iterator[Connection]:
        with translated(_init_command), ExitStack() as stack:
            if not connections[alias].in_atomic_block:
                stack.enter_context(transaction.atomic(using=alias))
            yield stack.enter_context(_borrowed(alias))

    vars(store).update(begin=begin, _reading=reading)


def leave_django(store: Store) -> None:
    """Let its statements go through its own engine again."""
    vars(store).pop("begin", None)
    vars(store).pop("_reading", None)


@contextmanager
def _borrowed(alias: str) -> Iterator[Connection]:
    driver = driver_of(connections[alias])
    assert driver is not None  # it is Django's
    with borrowed(*driver) as connection:
        yield connection


# Options of Django and of its driver; all others are libpq's.
_NOT_LIBPQ = frozenset(
    {"assume_role", "client_encoding", "context", "cursor_factory", "isolation_level", "pool", "prepare_threshold",
     "server_side_binding"}
)  # fmt: skip


def url_of(alias: str, settings: Mapping[str, Any]) -> URL:
    """
    Args:
        alias: for messages.
        settings: one of `DATABASES`.

    Raises:
        ConfigurationError: it is neither SQLite nor PostgreSQL.
    """
    backend = str(settings.get("ENGINE", "")).rpartition(".")[2]
    if backend in ("sqlite3", "spatialite"):
        return _sqlite(str(settings["NAME"]))
    if backend in ("postgresql", "postgis"):
        return _postgresql(settings)
    raise ConfigurationError(
        f"EFFECTS: the database {alias!r} is {backend or 'not set'}; effects works on sqlite and postgresql. Name "
        'another of DATABASES by EFFECTS = {"alias": …}'
    )


def is_in_memory(url: URL) -> bool:
    """Whether only Django's connection reaches it."""
    return url.get_backend_name() == "sqlite" and file_of(url) is None


def refuse_memory(alias: str) -> ConfigurationError:
    """For what needs connections of its own, as a worker does."""
    return ConfigurationError(
        f"the database {alias!r} is in memory, which no worker can share. In tests, give it a file: "
        f'DATABASES["{alias}"]["TEST"] = {{"NAME": BASE_DIR / "test.sqlite3"}}'
    )


def _sqlite(name: str) -> URL:
    if name == ":memory:" or "mode=memory" in name:
        return URL.create("sqlite", database=name.partition("?")[0], query={"mode": "memory", "uri": "true"})
    return URL.create("sqlite", database=str(Path(name).absolute()))


def _postgresql(settings: Mapping[str, Any]) -> URL:
    own = {name: value for name, value in settings.get("OPTIONS", {}).items() if name not in _NOT_LIBPQ}
    query = {**own, "host": settings.get("HOST"), "port": settings.get("PORT")}
    return URL.create(
        "postgresql",
        username=settings.get("USER") or None,
        password=settings.get("PASSWORD") or None,
        database=settings.get("NAME") or None,
        query={name: str(value) for name, value in query.items() if value},
    )


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
