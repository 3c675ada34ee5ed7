"""Database URLs as people write them, brought to one form, or refused with what to write instead."""

from __future__ import annotations

import re
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from effects.errors import ConfigurationError
from effects.kit.text.wording import described

EXAMPLES = "give sqlite:///file.db or postgresql://user@host/name"
# A URL of any of these names the same server: every process of effects speaks to it by psycopg, or by sqlite3.
_DRIVERS = {
    "postgresql": ("", "psycopg", "psycopg_async", "psycopg2", "psycopg2cffi", "asyncpg", "pg8000"),
    "sqlite": ("", "pysqlite", "aiosqlite"),
}
_OF_ASYNCPG = ("prepared_statement_cache_size", "statement_cache_size", "async_fallback")  # change nothing for psycopg
_OF_SQLITE = ("timeout", "isolation_level", "detect_types", "check_same_thread", "cached_statements", "uri")
_OF_SQLITE_URI = ("mode", "cache", "immutable", "nolock", "psow", "vfs")  # ignored where uri=true is missing
_SEVERAL_HOSTS = re.compile(r"^(?P<head>[^/]*://(?:[^/]*@)?)(?P<hosts>[^/?@]*,[^/?@]*)(?P<rest>[/?].*)?$")
_HOST = re.compile(r"(?P<host>[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?")
_PASSWORDS = (re.compile(r"(://[^/@:]*:)[^/]*(?=@)"), re.compile(r"([?&](?:ssl)?password=)[^&]*"))
_VARIABLE = "EFFECTS_DATABASE_URL"


def database_url(text: str) -> sa.URL:
    """Parse the URL of a database, with the driver that effects uses.

    Takes `postgres://`, the drivers of asynchronous engines, and several hosts in both forms:
    `host1:5432,host2:5432/name` (libpq) and `/name?host=host1:5432&host=host2:5432` (SQLAlchemy). Where it names
    several and no `target_session_attrs`, only the one that takes writes is right: `read-write`.

    Raises:
        ConfigurationError: says what is wrong and what to write. No message holds a password.
    """
    if not isinstance(text, str):
        raise ConfigurationError(f"{_VARIABLE} is {described(text)}; {EXAMPLES}")
    try:
        url = make_url(_one_host_form(text.strip()))
    except (ArgumentError, ValueError):
        raise ConfigurationError(f"{_VARIABLE} is not a database URL; {EXAMPLES}{_advice(text)}") from None
    backend, _, driver = url.drivername.partition("+")
    backend = "postgresql" if backend == "postgres" else backend
    if backend not in _DRIVERS:
        raise ConfigurationError(f"{_VARIABLE} names {backend}; use sqlite or postgresql")
    if driver not in _DRIVERS[backend]:
        raise ConfigurationError(f"{_VARIABLE} names the driver {driver}; write {backend}://, without a driver")
    if backend == "sqlite":
        return _sqlite(url, text.strip())
    return _postgresql(url.set(drivername="postgresql+psycopg"))


def describe_database(url: sa.URL) -> str:
    """Name a database to a person: its file, or name and server. Without user and password."""
    if url.get_backend_name() == "sqlite":
        return f"file {file_of(url) or '(in memory)'}"
    hosts = ",".join(sorted(f"{host}:{port}" if port else host for host, port in hosts_of(url)))
    return f"database {url.database or url.username or '(default)'} on {hosts or 'the default host'}"


def without_password(text: str) -> str:
    """A URL for a person to copy: PASSWORD stands where it has one."""
    for pattern in _PASSWORDS:
        text = pattern.sub(r"\1PASSWORD", text)
    return text


def file_of(url: sa.URL) -> Path | None:
    """The absolute path of a SQLite file; None for a database in memory.

    Raises:
        ConfigurationError: it is named by its place in the working directory, and that is gone.
    """
    name = (url.database or "").removeprefix("file:").partition("?")[0]
    if name in ("", ":memory:") or url.query.get("mode") == "memory":
        return None
    try:
        return Path(name).resolve()
    except FileNotFoundError:
        raise ConfigurationError(
            f"the working directory, where the database file {name!r} is looked for, was deleted: change to another one"
        ) from None


def hosts_of(url: sa.URL) -> set[tuple[str, str]]:
    """Each host that a PostgreSQL URL names (a name, or the folder of a socket), with its port or an empty string."""
    named = _values(url, "host") or ([url.host] if url.host else [])
    ports = _values(url, "port") or [str(url.port or "")]
    pairs = zip(named, ports * len(named) if len(ports) == 1 else ports, strict=False)
    return {(host.lower(), port) for host, port in (_split(name, port) for name, port in pairs)}


def _split(name: str, port: str) -> tuple[str, str]:
    matched = _HOST.fullmatch(name)
    return (matched["host"], matched["port"] or port) if matched else (name, port)


def _values(url: sa.URL, name: str) -> list[str]:
    """The values of an option of the URL that may be repeated, or hold several with commas."""
    value = url.query.get(name, ())
    return [part for text in ((value,) if isinstance(value, str) else value) for part in text.split(",") if part]


def _one_host_form(text: str) -> str:
    """libpq's list of hosts as options, which SQLAlchemy reads: `host=a,b&port=1,2`."""
    listed = _SEVERAL_HOSTS.match(text)
    if listed is None:
        return text
    pairs = [_HOST.fullmatch(pair) for pair in listed["hosts"].split(",")]
    hosts = ",".join(pair["host"] for pair in pairs if pair)
    ports = ",".join(pair["port"] or "5432" for pair in pairs if pair)
    if None in pairs:
        raise ConfigurationError(
            f"{_VARIABLE} names several hosts, one of which is no host:port; for addresses of IPv6 write "
            "postgresql://user@/name?host=address1,address2&port=5432,5432"
        )
    path, _, query = (listed["rest"] or "/").partition("?")
    return f"{listed['head']}{path}?host={hosts}&port={ports}{'&' if query else ''}{query}"


def _advice(text: str) -> str:
    if text.startswith("jdbc:"):
        return "; it begins with jdbc: and must not"
    if re.search(r"\b(host|dbname)\s*=", text) and "://" not in text:
        return "; it is libpq's form with host= and dbname="
    return "; characters such as @ / : in a password are written %40 %2F %3A" if "@" in text else ""


def _sqlite(url: sa.URL, text: str) -> sa.URL:
    options = [option.partition("=") for option in text.partition("?")[2].split("&") if option]
    accepted = (*_OF_SQLITE, *_OF_SQLITE_URI) if url.query.get("uri") else _OF_SQLITE
    for name, equals, _ in options:
        if not equals or name not in accepted:
            cure = "write uri=true beside it" if name in _OF_SQLITE_URI else "a ? begins options: rename the file"
            raise ConfigurationError(f"{_VARIABLE} has the option {name!r}, which SQLite does not know here; {cure}")
    if url.host is not None:
        raise ConfigurationError(f"{_VARIABLE} names a host for SQLite; a path has three slashes: sqlite:///file.db")
    if file_of(url) is None:
        raise ConfigurationError(f"{_VARIABLE} names an in-memory database, which no worker could share")
    return url.set(drivername="sqlite")


def _postgresql(url: sa.URL) -> sa.URL:
    """With options that psycopg knows."""
    if "ssl" in url.query:  # of asyncpg; its values are those of sslmode
        url = url.update_query_dict({"sslmode": str(url.query["ssl"])}).difference_update_query(["ssl"])
    url = url.difference_update_query(_OF_ASYNCPG)
    if url.query:
        _refuse_unknown_options(url)
    named, ports = _values(url, "host"), _values(url, "port")
    if ports and len(ports) not in (1, len(named)):
        raise ConfigurationError(
            f"{_VARIABLE} names {len(named)} hosts and {len(ports)} ports; give each host its port"
        )
    if len(ports) == 1 and len(named) > 1:
        url = url.update_query_dict({"port": ",".join(ports * len(named))})
    if len(named) > 1 and "target_session_attrs" not in url.query:
        url = url.update_query_dict({"target_session_attrs": "read-write"})
    return url


def _refuse_unknown_options(url: sa.URL) -> None:
    from psycopg.pq import Conninfo  # noqa: PLC0415 - an app on SQLite needs no libpq

    options = {option.keyword.decode() for option in Conninfo.get_defaults()} | {"async_"}
    if unknown := sorted(set(url.query) - options):
        raise ConfigurationError(
            f"{_VARIABLE} has the option {unknown[0]!r}, which PostgreSQL's client library does not know"
        )
