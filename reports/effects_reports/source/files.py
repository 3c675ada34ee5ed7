"""Files as tables, read by DuckDB, which can open nothing else; and whether they are still those of the first chunk."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Timer
from typing import Any

import msgspec

from effects import ConfigurationError
from effects.extend.process import lazy
from effects_reports.errors import ReportRefused
from effects_reports.formats.base import MappedRow
from effects_reports.source.paging import Cursor, RowPage

with lazy.modules(__name__):
    import duckdb

PAGE_ROWS = 1000
_SPILL = "10GiB"
SPILL_PREFIX = "effects-duckdb-"
_QUERY_SECONDS = 800.0
_READERS = {"parquet": "read_parquet", "csv": "read_csv", "tsv": "read_csv", "json": "read_json", "ndjson": "read_json",
            "jsonl": "read_json"}  # fmt: skip

# Type of DuckDB → how it is read. Python has neither months, nanoseconds and infinity, nor floats of 32 bits.
_FINITE = "CASE WHEN isinf({column}) THEN error({beyond}) ELSE {column} END"
_READ = {
    **dict.fromkeys(("INTERVAL", "TIMESTAMP_NS"), "CAST({column} AS VARCHAR)"),
    "INTERVAL[]": "CAST({column} AS VARCHAR[])",
    "FLOAT": "CAST(CAST({column} AS VARCHAR) AS DOUBLE)",
    **dict.fromkeys(("DATE", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP WITH TIME ZONE"), _FINITE),
}


class FileQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A SELECT over files, as `file_report` declares it. `rows` is how many are sorted at once."""

    sql: str
    folder: Path
    files: dict[str, str]
    columns: tuple[str, ...]
    key: tuple[str, ...]
    csv_types: dict[str, str]
    memory_mib: int
    threads: int
    rows: int

    def pages(self, values: Mapping[str, Any], after: Cursor) -> Iterator[RowPage]:
        """The rows in the order of the key, behind that of the cursor; a cursor begins with the files' digest.

        Raises:
            ReportRefused: the files are not those of the cursor, or change while the last page is read; the key is NULL
                or not unique; DuckDB rejects the SELECT.
        """
        paths = self._paths()
        digest = self._digest(paths)
        if after is not None and after[0] != digest:
            raise _changed()
        with self._open(paths) as connection:
            rows_sql = self._readable(connection, values)
            for rows, has_more in self._batches(connection, rows_sql, values, None if after is None else after[1:]):
                if not has_more and self._digest(self._paths()) != digest:
                    raise _changed()
                yield RowPage(rows, cursor=(digest, *self._key_of(rows[-1])) if has_more else None)

    def all_rows(self, values: Mapping[str, Any]) -> Iterator[MappedRow]:
        """The rows in the order of the SELECT.

        Raises:
            ReportRefused: the files have changed meanwhile, or DuckDB rejects the SELECT.
        """
        paths = self._paths()
        digest = self._digest(paths)
        with self._open(paths) as connection:
            result = connection.execute(self._readable(connection, values), dict(values))
            while rows := result.fetchmany(PAGE_ROWS):
                yield from rows
        if self._digest(self._paths()) != digest:
            raise _changed()

    # -- rows ----------------------------------------------------------------------------------------------------

    def _batches(
        self, connection: Any, rows_sql: str, values: Mapping[str, Any], last: Any
    ) -> Iterator[tuple[Sequence[MappedRow], bool]]:
        """At most `PAGE_ROWS` rows at once, and whether others follow.

        A query sorts `self.rows` of them and the one behind, which is looked at: a key that it repeats would be lost.
        """
        has_more = True
        while has_more:
            bounds = {f"effects_after_{number}": value for number, value in enumerate(last or ())}
            result = connection.execute(self._ordered(rows_sql, bool(bounds)), {**values, **bounds})
            left = self.rows
            rows = result.fetchmany(min(PAGE_ROWS, left))
            has_more = bool(rows)
            while rows and left:
                last, left = self._checked(rows, last), left - len(rows)
                following = result.fetchmany(min(PAGE_ROWS, left) or 1)
                has_more = bool(following)
                self._checked(following, last)
                yield rows, has_more
                rows = following

    def _readable(self, connection: Any, values: Mapping[str, Any]) -> str:
        """The SELECT, in which what Python would change is text, as DuckDB prints it, or an error."""
        result = connection.execute(f"SELECT * FROM ({self.sql}\n) AS effects_rows LIMIT 0", dict(values))
        changed = []
        for name, kind, *_ in result.description:
            if (read := _READ.get(str(kind))) is not None:
                beyond = _text(f"the column {name} holds infinity, which Python has not: cast it to text")
                changed.append(f"{read.format(column=_name(name), beyond=beyond)} AS {_name(name)}")
        return f"SELECT * REPLACE ({', '.join(changed)}) FROM ({self.sql}\n)" if changed else self.sql

    def _ordered(self, rows_sql: str, bounded: bool) -> str:
        key = [_name(column) for column in self.key]
        where = f" WHERE {_above(key)}" if bounded else ""
        return (
            f"SELECT {', '.join(map(_name, self.columns))} FROM ({rows_sql}\n) AS effects_rows{where} "
            f"ORDER BY {', '.join(f'{column} NULLS FIRST' for column in key)} LIMIT {self.rows + 1}"
        )

    def _key_of(self, row: Any) -> tuple[Any, ...]:
        return tuple(row[self.columns.index(name)] for name in self.key)

    def _checked(self, rows: Sequence[Any], last: Any) -> tuple[Any, ...]:
        for key in map(self._key_of, rows):
            if None in key:
                raise ReportRefused(f"its key ({', '.join(self.key)}) is NULL in some row", code="key_null")
            if key == last:
                text = f"two rows have one key ({', '.join(self.key)}); add a column that distinguishes them"
                raise ReportRefused(text, code="key_not_unique")
            last = key
        return tuple(last or ())

    # -- files ---------------------------------------------------------------------------------------------------

    def _paths(self) -> dict[str, list[Path]]:
        """Name → its files.

        Raises:
            ReportRefused: it has none, one is outside the folder, or they are not of one kind.
        """
        root = self.folder.resolve()
        paths = {name: sorted(root.glob(pattern)) for name, pattern in self.files.items()}
        for name, own in paths.items():
            if not own:
                raise ReportRefused(
                    f"no file in the report's folder matches {self.files[name]!r}", code="files_missing"
                )
            if any(not path.resolve().is_relative_to(root) for path in own):
                raise ReportRefused(f"a file of {name!r} is outside the report's folder", code="files_outside")
            if len({_reader(path) for path in own}) != 1 or _reader(own[0]) is None:
                text = f"the files of {name!r} must all be Parquet, all CSV or all JSON, by their extensions"
                raise ReportRefused(text, code="files_kind")
        return paths

    def _digest(self, paths: Mapping[str, Sequence[Path]]) -> str:
        digest = hashlib.sha256()
        for path in sorted({path for own in paths.values() for path in own}):
            status = path.stat()
            digest.update(
                f"{path.relative_to(self.folder.resolve())}\0{status.st_size}\0{status.st_mtime_ns}\0".encode()
            )
        return digest.hexdigest()

    @contextmanager
    def _open(self, paths: Mapping[str, Sequence[Path]]) -> Iterator[Any]:
        """A database in memory, with the files as views, that can open nothing beside them from now on."""
        _delete_abandoned()
        with tempfile.TemporaryDirectory(prefix=SPILL_PREFIX) as spill, self._connected(spill) as connection:
            timer = Timer(_QUERY_SECONDS, connection.interrupt)
            timer.daemon = True
            timer.start()
            try:
                self._prepare(connection, paths)
                yield connection
            except (
                duckdb.ProgrammingError,
                duckdb.DataError,
                duckdb.NotSupportedError,
                duckdb.PermissionException,
            ) as error:
                raise ReportRefused(f"DuckDB rejects the SELECT: {_first_line(error)}", code="duckdb") from error
            finally:
                timer.cancel()

    def _connected(self, spill: str) -> Any:
        settings: dict[str, Any] = {
            "memory_limit": f"{self.memory_mib}MiB", "threads": self.threads, "temp_directory": spill,
            "max_temp_directory_size": _SPILL, "autoinstall_known_extensions": False,
            "autoload_known_extensions": False, "allow_community_extensions": False,
        }  # fmt: skip
        try:
            return duckdb.connect(config=settings)
        except ImportError as error:
            text = "a report over files needs DuckDB: pip install 'effects-toolkit-reports[duckdb]'"
            raise ConfigurationError(text) from error

    def _prepare(self, connection: Any, paths: Mapping[str, Sequence[Path]]) -> None:
        statements = connection.extract_statements(self.sql)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise ReportRefused("the text of a report over files is one SELECT", code="duckdb")
        connection.execute("SET TimeZone = 'UTC'")
        for name, own in paths.items():
            connection.execute(f"CREATE VIEW {_name(name)} AS SELECT * FROM {self._relation(own)}")
        connection.execute(f"SET allowed_paths = [{_texts([path for own in paths.values() for path in own])}]")
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")

    def _relation(self, paths: Sequence[Path]) -> str:
        reader = _reader(paths[0])
        types = ", ".join(f"{_text(column)}: {_text(kind)}" for column, kind in self.csv_types.items())
        more = f", types = {{{types}}}" if types and reader == "read_csv" else ""
        return f"{reader}([{_texts(paths)}]{more})"


def _delete_abandoned() -> None:
    """Delete the temporary folders of killed workers: no query takes so long."""
    before = time.time() - 2 * _QUERY_SECONDS
    for folder in Path(tempfile.gettempdir()).glob(f"{SPILL_PREFIX}*"):
        with suppress(OSError):  # another user's, or gone
            if folder.stat().st_mtime < before:
                shutil.rmtree(folder)


def _reader(path: Path) -> str | None:
    ends = path.name.lower().removesuffix(".gz").rsplit(".", 1)
    return _READERS.get(ends[-1])


def _above(key: Sequence[str]) -> str:
    """The rows behind a key; its first column by itself, by which files are skipped."""
    conditions = []
    for number, column in enumerate(key):
        same = [f"{before} = $effects_after_{n}" for n, before in enumerate(key[:number])]
        conditions.append(f"({' AND '.join([*same, f'{column} > $effects_after_{number}'])})")
    return f"{key[0]} >= $effects_after_0 AND ({' OR '.join(conditions)})"


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(value: object) -> str:
    return "'" + str(value).replace("'", "''") + "'"


def _texts(values: Sequence[object]) -> str:
    return ", ".join(map(_text, values))


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _changed() -> ReportRefused:
    return ReportRefused(
        "the report's files have changed since its first chunk, by their names, sizes or times: request it again",
        code="files_changed",
    )
