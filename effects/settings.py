"""Settings: frozen, validated when made, read from the environment with the prefix EFFECTS_."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict, get_args

from effects.errors import ConfigurationError
from effects.kit import arguments
from effects.kit.arguments import Rule, optional, positive, require, shown
from effects.kit.files.names import check_url as check_storage_url
from effects.kit.text.unsafe import whole_number
from effects.store.db.urls import database_url

SessionsPolicy: TypeAlias = Literal["warn", "required", "off"]
ErrorTextsPolicy: TypeAlias = Literal["sealed", "plain", "none"]
LogFormat: TypeAlias = Literal["text", "json"]
LogLevel: TypeAlias = Literal["DEBUG", "INFO", "WARNING", "ERROR"]

DEFAULT_DATABASE_URL = "sqlite:///effects.db"
DEFAULT_STORAGE_URL = "file:effects-files"
_IDENTIFIER = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_ABOVE_ZERO = (
    "heartbeat_seconds", "lease_seconds", "poll_seconds", "grace_seconds", "retention_jobs_days",
    "retention_dead_days", "retention_effects_days", "retention_audit_days",
)  # fmt: skip
_CHOICES: Mapping[str, Sequence[str]] = {
    "sessions": get_args(SessionsPolicy),
    "error_texts": get_args(ErrorTextsPolicy),
    "log_format": get_args(LogFormat),
    "log_level": get_args(LogLevel),
}
_MISSPELT = re.compile(r"EFFECTS?_?((DATABASE|DB)(_?(URL|URI|DSN))?|URL|DSN)")
_TRUE, _FALSE = {"1", "true", "yes", "on"}, {"0", "false", "no", "off", ""}


# By its annotation, what a setting may be.
_KINDS: Mapping[str, Rule] = {
    "str": arguments.text,
    "str | None": optional(arguments.text),
    "bool": arguments.flag,
    "int": arguments.whole(1, 2**31 - 1),
    "Mapping[str, str]": arguments.mapping,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that an operator may set. Each has an environment variable: EFFECTS_ and the name.

    Args:
        database_url: SQLAlchemy URL of SQLite or PostgreSQL. Default `sqlite:///effects.db`.
        schema: PostgreSQL schema of the tables; default the connection's search path.
        keys: `id=base64` pairs, comma-separated, newest first, each 32 bytes; `effects keys generate` makes one.
        storage_url: where files are kept (reports, attachments): a folder, or `s3://bucket/prefix`; see
            `effects.kit.files.open_storage`. No other database may use it: pruning deletes what no row names. Default
            the folder `effects-files` in the working directory.
        threads: handler threads of a queue that names no number of its own. Default 10.
        in_flight: attempts that a queue whose job types are all `async def` has in flight, where it names no number of
            its own. Default 1,024.
        queues: `name=threads` pairs, comma-separated, such as `emails=8,reports=2`; queues that job types name
            are added by themselves. Of a queue of async job types it is the number in flight.
        heartbeat_seconds: interval of a worker's heartbeats. Default 10.
        lease_seconds: a worker silent for longer has lost its jobs. Default 120; at least 3 heartbeats.
        poll_seconds: longest idle wait between two looks at the queue. Default 1.
        grace_seconds: time that a stopping worker gives its running handlers. Default 30.
        retention_jobs_days: how long ended jobs are kept, with their attempts. Default 7. A job type may say
            otherwise (`retention_days`).
        retention_dead_days: how long a dead or unknown job is kept after it was resolved. Default 30.
        retention_effects_days: how long an idempotency key is remembered after its effect's last change.
            Default 90; per job type: `retention_effects_days`.
        retention_audit_days: how long the audit log is kept (`effects log`). Default 730, two years.
        error_texts: how the text of a handler's exception, which may quote what is personal, is kept with its attempt
            and shown by `effects why`: `sealed` with EFFECTS_KEYS, `plain` (and logged), or `none`, which leaves the
            class and the place. Default `sealed` where there are keys, else `none`. Per job type: `keep_error_text`.
            `effects work` on a terminal prints it in any case.
        evidence_folder: where each worker keeps what it released and what came of it in the last minutes, so that it
            survives a kill of the worker together with a failover; see docs/failover.md. Default: in memory only.
        sessions: what becomes of a call without `session=`, and that joins none, inside the caller's own transaction
            that has written: `required` (refused, the default), `warn` or `off`.
        notify_in_transaction: whether workers are told by a NOTIFY inside the caller's transaction where its session
            tells of no commit (a driver's own connection). Commits with one wait for each other. Default no: the next
            poll finds the job.
        log_format: `text` or `json`. log_level: DEBUG, INFO, WARNING or ERROR.

    Raises:
        ConfigurationError: names the variable, what it held and what it may hold.
    """

    database_url: str = DEFAULT_DATABASE_URL
    schema: str | None = None
    keys: str = ""
    storage_url: str = DEFAULT_STORAGE_URL
    threads: int = 10
    in_flight: int = 1024
    queues: str = ""
    heartbeat_seconds: float = 10.0
    lease_seconds: float = 120.0
    poll_seconds: float = 1.0
    grace_seconds: float = 30.0
    retention_jobs_days: float = 7.0
    retention_dead_days: float = 30.0
    retention_effects_days: float = 90.0
    retention_audit_days: float = 730.0
    error_texts: ErrorTextsPolicy | None = None
    evidence_folder: str = ""
    sessions: SessionsPolicy = "required"
    notify_in_transaction: bool = False
    log_format: LogFormat = "text"
    log_level: LogLevel = "INFO"

    def __post_init__(self) -> None:
        check_kinds(self)
        url = database_url(self.database_url)
        check_storage_url(self.storage_url)
        if self.schema is not None and not _IDENTIFIER.fullmatch(self.schema):
            raise ConfigurationError(f"EFFECTS_SCHEMA is {shown(self.schema)}; give a plain lower-case identifier")
        if self.schema is not None and self.schema.startswith("pg_"):
            raise ConfigurationError(f"EFFECTS_SCHEMA is {self.schema!r}; such names are PostgreSQL's own")
        if self.schema is not None and url.get_backend_name() == "sqlite":
            raise ConfigurationError("EFFECTS_SCHEMA is for PostgreSQL; SQLite has no schemas: unset it")
        for name in _ABOVE_ZERO:
            require(f"EFFECTS_{name.upper()}", getattr(self, name), positive, ConfigurationError)
        if self.lease_seconds < 3 * self.heartbeat_seconds:
            raise ConfigurationError(
                f"EFFECTS_LEASE_SECONDS is {self.lease_seconds:g} and EFFECTS_HEARTBEAT_SECONDS "
                f"{self.heartbeat_seconds:g}; a lease must last at least three heartbeats"
            )
        for name, words in _CHOICES.items():
            self._choose(name, words)
        if self.error_texts == "sealed" and not self.keys:
            raise ConfigurationError("EFFECTS_ERROR_TEXTS is sealed, which needs EFFECTS_KEYS: set it, or give plain")
        self.queue_threads()

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ, **overrides: Any) -> Settings:
        """The environment's settings, with those given by the caller (and not None) on top."""
        values = values_of(cls, environ, overrides)
        if "database_url" not in values:
            _refuse_unnamed_database(environ)
        return cls(**values)

    def _choose(self, name: str, words: Sequence[str]) -> None:
        """One of these words, in either case."""
        value = getattr(self, name)
        word = next((word for word in words if isinstance(value, str) and value.lower() == word.lower()), None)
        if word is None and (name, value) != ("error_texts", None):
            *others, last = words
            raise ConfigurationError(f"EFFECTS_{name.upper()} is {shown(value)}; give {', '.join(others)} or {last}")
        object.__setattr__(self, name, word)

    def queue_threads(self) -> dict[str, int]:
        """The queues named by the operator, with their thread counts."""
        queues: dict[str, int] = {}
        for pair in filter(None, (part.strip() for part in self.queues.split(","))):
            name, _, text = pair.partition("=")
            count = whole_number(text)
            if not name or not count:
                raise ConfigurationError(f"EFFECTS_QUEUES holds {shown(pair)}; give name=threads, such as emails=8")
            queues[name.strip()] = count
        return queues

    def __repr__(self) -> str:
        """Without the keys and the database password."""
        parsed = database_url(self.database_url).difference_update_query(("password", "sslpassword"))
        url = parsed.render_as_string(hide_password=True)
        return f"Settings(database_url={url!r}, schema={self.schema!r})"


def check_kinds(settings: Any) -> None:
    """Check that each value of a dataclass of settings is of its field's kind: a text, a number, true or false.

    A flag that is given as a text, `"false"`, would be true.

    Raises:
        ConfigurationError: names the first variable that is not, and what it may hold.
    """
    for setting in fields(settings):
        rule = _KINDS.get(str(setting.type))
        if rule is not None:
            name = setting.metadata.get("variable", f"EFFECTS_{setting.name.upper()}")
            require(name, getattr(settings, setting.name), rule, ConfigurationError)


def values_of(kind: type, environ: Mapping[str, str], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a dataclass of settings: from each field's variable, with what the caller gives (and is not None)
    on top. The variable is EFFECTS_ and the field's name, or that of its metadata (`variable`).

    Raises:
        ConfigurationError: a variable of a flag or a number holds something else; names it.
    """
    values: dict[str, Any] = {}
    for setting in fields(kind):
        if text := environ.get(setting.metadata.get("variable", f"EFFECTS_{setting.name.upper()}")):
            values[setting.name] = _convert(setting.name, setting.default, text)
    return values | {name: value for name, value in overrides.items() if value is not None}


def _refuse_unnamed_database(environ: Mapping[str, str]) -> None:
    """Where the variable is empty or misspelt, the default would be another, empty database."""
    right = "EFFECTS_DATABASE_URL"
    if right in environ:
        raise ConfigurationError(f"{right} is empty; give it a URL, or unset it for {DEFAULT_DATABASE_URL}")
    for name in sorted(name for name in environ if name.upper().startswith("EFFECT")):
        if _MISSPELT.fullmatch(name.upper()) or get_close_matches(name.upper(), [right], cutoff=0.92):
            raise ConfigurationError(f"{right} is not set, and {name} is: rename it to {right}")


def _convert(name: str, default: object, text: str) -> object:
    variable = f"EFFECTS_{name.upper()}"
    if isinstance(default, bool):
        if text.lower() not in _TRUE | _FALSE:
            raise ConfigurationError(f"{variable} is {shown(text)}; give true or false")
        return text.lower() in _TRUE
    if isinstance(default, int | float):
        try:
            return type(default)(text)
        except ValueError:
            unit = next((f" of {unit}" for unit in ("seconds", "days") if name.endswith(unit)), "")
            raise ConfigurationError(f"{variable} is {shown(text)}; give a number{unit}") from None
    return text


class EffectsOptions(TypedDict, total=False):
    """The options of `Effects(…)`: single settings, each over its environment variable; None leaves that one in force.

    `Settings` says what each means, and the settings class of each built-in package: theirs are here by name alone, as
    type checkers read no entry points. Type checkers do not know the options of other packages: give those by the
    environment.
    """

    schema: str | None
    keys: str | None
    storage_url: str | None
    threads: int | None
    in_flight: int | None
    queues: str | Sequence[str] | None
    heartbeat_seconds: float | None
    lease_seconds: float | None
    poll_seconds: float | None
    grace_seconds: float | None
    retention_jobs_days: float | None
    retention_dead_days: float | None
    retention_effects_days: float | None
    retention_audit_days: float | None
    error_texts: ErrorTextsPolicy | None
    evidence_folder: str | None
    sessions: SessionsPolicy | None
    notify_in_transaction: bool | None
    log_format: LogFormat | None
    log_level: LogLevel | None

    smtp_url: str | None
    email_transports: Mapping[str, str] | None
    email_failover: str | None
    email_from: str | None
    templates: str | Path | Sequence[Path] | None
    email_redirect: str | None
    email_hold: bool | None
    email_content_days: float | None
    unsubscribe_url: str | None
    unsubscribe_mailto: str | None
    email_return_path: str | None
    email_bounce_domain: str | None
    email_nameserver: str | None
    dkim_keys: str | None

    allow_private_addresses: bool | None
    private_networks: str | None
    webhook_notice_job_type: str | None
    webhook_event_types: Sequence[Any] | None  # of EventType

    reports: Sequence[Any] | None  # of ReportDefinition
    report_engines: Mapping[str, Any] | None
    bucket_private_networks: str | None
    report_memory: int | None
