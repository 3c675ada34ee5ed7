"""What a plain INSERT may write into a column of `effects_jobs`: SQL literals for each column, kind by kind.

The lists are by the column's declared type, so that a new column is tried without a word here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import BigInteger, Boolean, Column, Integer, SmallInteger, Table, Text
from sqlalchemy.types import JSON

from effects.store.schema.columns import UtcTime

SECRET = "rosebud-4111"

_LATIN = '{"code":"Jos\udce9"}'.encode(errors="surrogateescape").hex()  # no UTF-8; what is not payload may be shown
_LATIN_SECRET = f'{{"code":"Jos\udce9 {SECRET}"}}'.encode(errors="surrogateescape").hex()
_TEXTS = [
    "''",
    "' '",
    "'with ''quotes'' and \"these\"'",
    "'$.\"x'",
    "'default'",
    "'" + "x" * 256 + "'",
    "'" + "x" * 100_000 + "'",
    "'\u202egnp.exe\u200b\u2066'",
    "'\x1b]0;title\x07\x9b31m'",
    "'\u00e9\u2028\U0001f600'",
]
_INTEGERS = ["-1", "0", "1", "2147483647", "-2147483648", "32767", "-32768"]
_BIG = ["9223372036854775807", "-9223372036854775808", "4611686018427387904", "9007199254740993"]
_DOCUMENTS = [
    "[]", "null", "1", '"x"', "[[1]]", '{"code": 1}', '{"code": null}', '{"code": "\\u202e\\u001b[2J"}', "1e400",
    "[" * 900 + "]" * 900, '{"a":' * 400 + "1" + "}" * 400, '{"code":"' + "x" * 70_000 + '"}',
    '{"code":"' + "x" * 2_000_000 + '"}', '{"$sealed": 5}', '{"$sealed": {"key": "k"}}',
    '{"$sealed": {"key": "k", "value": "AAAA"}}', '{"$sealed": {"key": "k", "value": "\\u00e9"}}', '{"$sealed": []}',
]  # fmt: skip
_POSTGRESQL_TIMES = [
    "'infinity'", "'-infinity'", "'294276-12-31'", "'4713-01-01 BC'", "'9999-12-31 23:59:59.999999+00'",
    "'10000-01-01'", "'0001-01-01 00:00:00+00'", "'epoch'", "now() - interval '1 day'",
]  # fmt: skip
# SQLite takes a value of any kind in a column of any type.
_SQLITE_ANYWHERE = [
    "NULL", "''", "'high'", "'2026-01-14T06:00:00Z'", "-1", "0", "1", "1.5", "9e999", "-9e999", "9223372036854775807",
    "-9223372036854775808", "253402300800000", "-62135596800001", "x''", "x'00ff'", f"x'{_LATIN}'",
    f"CAST(x'{_LATIN}' AS TEXT)", "CAST(x'61006200' AS TEXT)", "CAST(x'eda080' AS TEXT)", "'{broken'",
]  # fmt: skip


@dataclass(frozen=True)
class OddRow:
    """One row: a literal for one column, in a waiting row or one that a dead worker left behind."""

    column: str
    literal: str
    running: bool

    def __str__(self) -> str:
        return f"{self.column}={self.literal[:60]!r}{' running' if self.running else ''}"

    def insert(self, table: str, past: str) -> str:
        """The statement. Where the column says nothing else, it is a due job of `odd` that holds the secret."""
        values = {"job_type": "'odd'", "payload": f"""'{{"code": "{SECRET}"}}'"""}
        if self.running:
            values |= {"status": "'running'", "locked_by": "'gone'", "locked_until": past, "attempts": "1",
                       "lease_token": "1", "started_at": past}  # fmt: skip
        values[self.column] = self.literal
        return f"INSERT INTO {table} ({', '.join(values)}) VALUES ({', '.join(values.values())})"


def odd_rows(table: Table, *, postgresql: bool) -> Iterator[OddRow]:
    """Every column with everything that may be wrong with it."""
    for column in table.columns:
        for literal in literals(column, postgresql=postgresql):
            for running in (False, True):
                yield OddRow(column.name, literal, running)


def literals(column: Column[object], *, postgresql: bool) -> list[str]:
    """Everything that may be wrong with a column."""
    return _postgresql(column) if postgresql else _sqlite(column)


def _sqlite(column: Column[object]) -> list[str]:
    if isinstance(column.type, Text):
        return [*_SQLITE_ANYWHERE, *_TEXTS]
    if isinstance(column.type, JSON):
        secret = [f"x'{_LATIN_SECRET}'", f"CAST(x'{_LATIN_SECRET}' AS TEXT)"]
        return [*_SQLITE_ANYWHERE, *secret, *(_quoted(document) for document in _DOCUMENTS)]
    return _SQLITE_ANYWHERE


def _postgresql(column: Column[object]) -> list[str]:
    kind = column.type
    if isinstance(kind, JSON):
        return [_quoted(document) for document in _DOCUMENTS]
    if isinstance(kind, UtcTime):
        return ["NULL", *_POSTGRESQL_TIMES]
    if isinstance(kind, Boolean):
        return ["NULL", "true", "false"]
    if isinstance(kind, SmallInteger | Integer):
        return ["NULL", *_INTEGERS, *(_BIG if isinstance(kind, BigInteger) else [])]
    return ["NULL", *_TEXTS]


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
