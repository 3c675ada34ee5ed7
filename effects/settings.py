"""Settings: frozen, validated when made, read from the environment with the prefix EFFECTS_."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from effects.errors import ConfigurationError
from effects.storage.opening import check_url as check_storage_url

DEFAULT_DATABASE_URL = "sqlite:///effects.db"
DEFAULT_STORAGE_URL = "file:effects-files"
_IDENTIFIER = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_ABOVE_ZERO = (
    "threads", "heartbeat_seconds", "lease_seconds", "poll_seconds", "grace_seconds", "retention_jobs_days",
    "retention_dead_days", "retention_effects_days",
)  # fmt: skip
_TRUE, _FALSE = {"1", "true", "yes", "on"}, {"0", "false", "no", "off", ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that an operator may set. Each has an environment variable: EFFECTS_ and the name.

    Args:
        database_url: SQLAlchemy URL of SQLite or PostgreSQL. Default `sqlite:///effects.db`.
        schema: PostgreSQL schema of the tables; default the connection's search path.
        keys: `id=base64` pairs, comma-separated, newest first, each 32 bytes; `effects keys generate` makes one.
        storage_url: where files are kept (reports, attachments): a folder, or `s3://bucket/prefix`; see
            `effects.storage.open_storage`. Default the folder `effects-files` in the working directory.
        threads: handler threads of a lane that names no number of its own. Default 10.
        lanes: `name=threads` pairs, comma-separated, such as `emails=8,reports=2`; lanes that job types name
            are added by themselves.
        heartbeat_seconds: how often a worker says that it lives. Default 10.
        lease_seconds: a worker silent for longer has lost its jobs. Default 120; at least 3 heartbeats.
        poll_seconds: longest idle wait between two looks at the queue. Default 1.
        grace_seconds: time that a stopping worker gives its running handlers. Default 30.
        retention_jobs_days: how long ended jobs are kept, with their attempts. Default 7. A job type may say
            otherwise (`retention_days`).
        retention_dead_days: how long a dead or unknown job is kept after somebody closed it. Default 30.
        retention_effects_days: how long an idempotency key is remembered after its effect's last change.
            Default 90; a job type may say otherwise (`retention_effects_days`).
        allow_private_addresses: let webhooks reach loopback and private networks. Default no.
        private_networks: comma-separated networks, such as `10.1.0.0/16`, which webhooks may reach although they
            are private. Default none.
        webhook_notice_job_type: the job type that is enqueued when an endpoint has failed for 1, 24 and 72 hours,
            and when it is disabled. Its payload takes `notice` (`failing` or `disabled`), `endpoint_id`, `reason`,
            `failing_seconds` and `failed_messages`. Default none: the log says it.
        log_format: `text` or `json`. log_level: DEBUG, INFO, WARNING or ERROR.

    Raises:
        ConfigurationError: names the variable, what it held and what it may hold.
    """

    database_url: str = DEFAULT_DATABASE_URL
    schema: str | None = None
    keys: str = ""
    storage_url: str = DEFAULT_STORAGE_URL
    threads: int = 10
    lanes: str = ""
    heartbeat_seconds: float = 10.0
    lease_seconds: float = 120.0
    poll_seconds: float = 1.0
    grace_seconds: float = 30.0
    retention_jobs_days: float = 7.0
    retention_dead_days: float = 30.0
    retention_effects_days: float = 90.0
    allow_private_addresses: bool = False
    private_networks: str = ""
    webhook_notice_job_type: str = ""
    log_format: str = "text"
    log_level: str = "INFO"

    def __post_init__(self) -> None:
        _check_url(self.database_url)
        check_storage_url(self.storage_url)
        if self.schema is not None and not _IDENTIFIER.fullmatch(self.schema):
            raise ConfigurationError(f"EFFECTS_SCHEMA is {self.schema!r}; give a plain lower-case identifier")
        if self.schema is not None and self.database_url.startswith("sqlite"):
            raise ConfigurationError("EFFECTS_SCHEMA is for PostgreSQL; SQLite has no schemas: unset it")
        for name in _ABOVE_ZERO:
            if not 0 < getattr(self, name) < math.inf:  # neither is "nan"
                raise ConfigurationError(f"EFFECTS_{name.upper()} is {getattr(self, name)}; it must be above 0")
        if self.lease_seconds < 3 * self.heartbeat_seconds:
            raise ConfigurationError(
                f"EFFECTS_LEASE_SECONDS is {self.lease_seconds:g} and EFFECTS_HEARTBEAT_SECONDS "
                f"{self.heartbeat_seconds:g}; a lease must last at least three heartbeats"
            )
        if self.log_format not in ("text", "json"):
            raise ConfigurationError(f"EFFECTS_LOG_FORMAT is {self.log_format!r}; give text or json")
        if self.log_level not in ("DEBUG", "INFO", "WARNING", "ERROR"):
            raise ConfigurationError(f"EFFECTS_LOG_LEVEL is {self.log_level!r}; give DEBUG, INFO, WARNING or ERROR")
        self.lane_threads()

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ, **given: Any) -> Settings:
        """The environment's settings, with those given by the caller (and not None) on top."""
        values: dict[str, Any] = {}
        for setting in fields(cls):
            text = environ.get(f"EFFECTS_{setting.name.upper()}")
            if text is not None and text != "":
                values[setting.name] = _convert(setting.name, setting.default, text)
        values.update({name: value for name, value in given.items() if value is not None})
        return cls(**values)

    def lane_threads(self) -> dict[str, int]:
        """The lanes named by the operator, with their thread counts."""
        lanes: dict[str, int] = {}
        for pair in filter(None, (part.strip() for part in self.lanes.split(","))):
            name, _, count = pair.partition("=")
            if not name or not count.isdigit() or int(count) < 1:
                raise ConfigurationError(f"EFFECTS_LANES holds {pair!r}; give name=threads, such as emails=8")
            lanes[name.strip()] = int(count)
        return lanes

    @property
    def is_postgresql(self) -> bool:
        return self.database_url.startswith("postgresql")

    def __repr__(self) -> str:
        """Without the keys and the database password."""
        url = make_url(self.database_url).render_as_string(hide_password=True)
        return f"Settings(database_url={url!r}, schema={self.schema!r})"


def _check_url(database_url: str) -> None:
    try:
        url = make_url(database_url)
    except ArgumentError:
        raise ConfigurationError(
            "EFFECTS_DATABASE_URL is not a database URL; give sqlite:///file.db or postgresql://user@host/name"
        ) from None
    if url.get_backend_name() not in ("sqlite", "postgresql"):
        raise ConfigurationError(f"EFFECTS_DATABASE_URL names {url.get_backend_name()}; use sqlite or postgresql")
    if url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:"):
        raise ConfigurationError("EFFECTS_DATABASE_URL names an in-memory database, which no worker could share")


def _convert(name: str, default: object, text: str) -> object:
    variable = f"EFFECTS_{name.upper()}"
    if isinstance(default, bool):
        if text.lower() not in _TRUE | _FALSE:
            raise ConfigurationError(f"{variable} is {text!r}; give true or false")
        return text.lower() in _TRUE
    if isinstance(default, int | float):
        try:
            return type(default)(text)
        except ValueError:
            raise ConfigurationError(f"{variable} is {text!r}; give a number") from None
    return text
