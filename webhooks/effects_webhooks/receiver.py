"""The partner's side: verify, take each message once, answer. As an ASGI or a WSGI app.

    seen = SeenMessages(create_engine("sqlite:///shop.db"))
    seen.create()

    def handle(event: Event, connection: Connection) -> None:
        ...  # the work, with this connection

    app = asgi_app(handle, secrets=["whsec_…"], seen=seen)  # or wsgi_app

A message is remembered in the transaction of the handler: both commit or neither does. So a repeat, of which there are
some by design, finds the work done or not begun. Needs no database of effects, and no EFFECTS_ settings.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from sqlalchemy import Column, Connection, DateTime, Engine, MetaData, Table, Text, delete
from sqlalchemy.dialects import postgresql, sqlite

from effects import ConfigurationError
from effects.extend.process import own_logger
from effects.extend.receivers import web_apps
from effects.extend.secrets import SecretInvalid, SignatureInvalid, signing, verify
from effects.extend.sql import commits_alone
from effects.extend.text import error_reason

_METHODS = ("POST",)
KEEP_DAYS = 14.0  # a sender tries for days, and an operator may replay later still
_log = own_logger("effects.webhooks.receiver")


@dataclass(frozen=True, slots=True)
class Event:
    """A verified message. `id` is the same on every repeat."""

    id: str
    type: str
    timestamp: str
    data: Mapping[str, Any]


Handler: TypeAlias = Callable[[Event, Connection], None]


class SeenMessages:
    """The ids of messages that were handled, in its own table in the partner's database.

    Args:
        engine: of SQLite or PostgreSQL; the handler's connection comes from it.
        table: its name. Default `webhook_messages_seen`.
    """

    def __init__(self, engine: Engine, *, table: str = "webhook_messages_seen") -> None:
        self.engine = engine
        self.table = Table(
            table, MetaData(), Column("id", Text, primary_key=True),
            Column("seen_at", DateTime(timezone=True), nullable=False, index=True),
        )  # fmt: skip

    def create(self) -> None:
        """Create the table where it is missing.

        Raises:
            ConfigurationError: the engine commits each statement by itself.
        """
        with self.engine.begin() as connection:
            _refuse_autocommit(connection)
            self.table.create(connection, checkfirst=True)

    def first(self, connection: Connection, message_id: str) -> bool:
        """Whether this id was not seen before; it is now, once the transaction commits.

        A repeat that comes meanwhile waits for that transaction.

        Raises:
            ConfigurationError: there is no transaction; nothing was written.
        """
        _refuse_autocommit(connection)
        dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
        row = {"id": message_id, "seen_at": datetime.now(UTC)}
        statement = dialect.insert(self.table).values(row).on_conflict_do_nothing().returning(self.table.c.id)
        return connection.execute(statement).first() is not None

    def prune(self, keep_days: float = KEEP_DAYS) -> int:
        """Forget ids older than that; how many. A sender that repeats still later is not recognised."""
        oldest = datetime.now(UTC) - timedelta(days=keep_days)
        with self.engine.begin() as connection:
            return connection.execute(delete(self.table).where(self.table.c.seen_at < oldest)).rowcount


def _refuse_autocommit(connection: Connection) -> None:
    if commits_alone(connection):
        raise ConfigurationError(
            "the engine of SeenMessages commits each statement by itself (AUTOCOMMIT): a message whose handler failed "
            "would count as handled. Give it an engine with transactions"
        )


class Receiving:
    """Takes requests: verifies, skips repeats, calls the handler in a transaction.

    Args:
        handle: called once a message. What it raises is logged by its class, rolled back, and answered 500: the
            sender tries again.
        secrets: `whsec_…`, one, or several while one is replaced.
        seen: where handled messages are remembered.
        tolerance_seconds: how far the request's time may be from now. Default 300.

    Raises:
        SecretInvalid: a secret is malformed or missing.
    """

    def __init__(
        self,
        handle: Handler,
        *,
        secrets: Iterable[str] | str,
        seen: SeenMessages,
        tolerance_seconds: float = signing.TOLERANCE_SECONDS,
    ) -> None:
        self._handle = handle
        self._secrets = [secrets] if isinstance(secrets, str) else list(secrets)
        if not self._secrets:
            raise SecretInvalid("give at least one secret")
        for secret in self._secrets:
            signing.parse_secret(secret)
        self._seen = seen
        self._tolerance_seconds = tolerance_seconds

    def take(self, headers: Mapping[str, str], body: bytes) -> int:
        """The status to answer: 204 handled now or before, 401 not verified, 400 no event, 500 the handler failed."""
        try:
            message_id = verify(self._secrets, headers, body, tolerance_seconds=self._tolerance_seconds)
        except SignatureInvalid as error:
            _log.warning("webhook.refused", extra={"reason": str(error)})
            return 401
        event = _event(message_id, body)
        if event is None:
            return 400
        try:
            with self._seen.engine.begin() as connection:
                if self._seen.first(connection, message_id):
                    self._handle(event, connection)
        except Exception as error:
            _log.error("webhook.handler_failed", extra={"message_id": message_id, "error": error_reason(error)})
            return 500
        return 204

    def answer(self, request: web_apps.Request) -> web_apps.Answer:
        """For `web_apps.asgi_app` and `web_apps.wsgi_app`."""
        return web_apps.Answer(self.take(request.headers, request.body))


def _event(message_id: str, body: bytes) -> Event | None:
    try:
        document = json.loads(body)
        return Event(message_id, document["type"], document.get("timestamp", ""), document["data"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


# -- as apps -----------------------------------------------------------------------------------------------------


def asgi_app(
    handle: Handler,
    *,
    secrets: Iterable[str] | str,
    seen: SeenMessages,
    tolerance_seconds: float = signing.TOLERANCE_SECONDS,
) -> web_apps.AsgiApp:
    """An ASGI app that takes webhooks at every path: run it, or mount it. The handler runs in a thread.

    Args and Raises: as `Receiving`. At most 1 MiB of a body is read; more is answered 413, another method 405.
    """
    receiving = Receiving(handle, secrets=secrets, seen=seen, tolerance_seconds=tolerance_seconds)
    return web_apps.asgi_app(receiving.answer, methods=_METHODS)


def wsgi_app(
    handle: Handler,
    *,
    secrets: Iterable[str] | str,
    seen: SeenMessages,
    tolerance_seconds: float = signing.TOLERANCE_SECONDS,
) -> web_apps.WsgiApp:
    """A WSGI app (PEP 3333) that takes webhooks at every path.

    Args and Raises: as `Receiving`. Limits as `asgi_app`; a body without Content-Length counts as empty.
    """
    receiving = Receiving(handle, secrets=secrets, seen=seen, tolerance_seconds=tolerance_seconds)
    return web_apps.wsgi_app(receiving.answer, methods=_METHODS)
