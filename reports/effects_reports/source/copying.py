"""PostgreSQL's COPY in the format of the file: the statement, and the rows that it writes, defended from formulas."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from operator import itemgetter
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, Select, Subquery

from effects.extend.process import lazy
from effects_reports.formats.base import ChunkSource, Column, Format
from effects_reports.formats.csv import SIGNS, Csv
from effects_reports.formats.ndjson import Ndjson
from effects_reports.source.kinds import FREE, Kind, kinds_of, text_of_kind, value_of_kind

with lazy.modules(__name__):
    import psycopg
    from psycopg import adapt, pq


_UTC = {"UTC", "Etc/UTC", "GMT"}  # what a server is set up with where its machine keeps UTC
_CSV = "FORMAT csv, ENCODING 'UTF8'"
# JSON holds no control character, so that nothing is ever quoted; the text format would double its backslashes.
_LINES = "FORMAT csv, ENCODING 'UTF8', QUOTE E'\\x01', DELIMITER E'\\x02'"


@dataclass(frozen=True, slots=True)
class _CopyStatement:
    """A COPY as the server takes it.

    `undefended`: columns, from 0 on, whose texts the reader has to defend against formulas.
    """

    text: str
    undefended: tuple[int, ...]


def _copy_statement(
    connection: Connection, select: Select[Any], columns: Sequence[Column], file: Format, *, defends: bool
) -> _CopyStatement:
    """The SELECT as a COPY.

    Args:
        defends: PostgreSQL itself defends every text, where the file's dialect asks for that.
    """
    zone = connection.exec_driver_sql("SELECT current_setting('TimeZone')").scalar_one()  # the SELECT may depend on it
    source = select.subquery("source")
    kinds = kinds_of(connection, source)
    if zone in _UTC and not (isinstance(file, Csv) and file.decimal_comma):
        kinds = ["moment" if kind == "zoned" else kind for kind in kinds]
    undefended = () if defends or not isinstance(file, Csv) else _undefended(kinds, file)
    query = _csv(source, kinds, file, undefended) if isinstance(file, Csv) else _json(source, kinds, columns)
    options = f"{_CSV}, DELIMITER '{file.separator}'" if isinstance(file, Csv) else _LINES
    return _CopyStatement(f"COPY ({_with_values(connection, query)}) TO STDOUT ({options})", undefended)


def _with_values(connection: Connection, query: Select[Any]) -> str:
    """The SELECT with its values in it, because COPY takes none: each as the driver would send it, of the same type."""
    compiled = query.compile(dialect=connection.dialect)
    state = compiled.construct_expanded_state()
    # Those of every parameter, and of expanded ones.
    processors: dict[str, Any] = {**compiled._bind_processors, **state.processors}
    driver: Any = connection.connection.driver_connection
    adapting = adapt.Transformer(driver)
    literals = {
        name: _literal(driver, adapting, process(value) if (process := processors.get(name)) else value)
        for name, value in state.parameters.items()
    }
    return state.statement % literals


def _literal(driver: Any, adapting: Any, value: Any) -> str:
    if value is None:
        return "NULL"
    dumper = adapting.get_dumper(value, adapt.PyFormat.TEXT)
    if (text := dumper.dump(value)) is None:
        return "NULL"
    quoted = pq.Escaping(driver.pgconn).escape_literal(text).decode(driver.info.encoding)
    sql_type = driver.adapters.types.get(dumper.oid)  # of none for a plain text, whose type the server decides
    if sql_type is None:
        return str(quoted)
    return f"CAST({quoted} AS {sql_type.regtype}{'[]' if dumper.oid == sql_type.array_oid else ''})"


def _undefended(kinds: Sequence[Kind], file: Csv) -> tuple[int, ...]:
    return tuple(number for number, kind in enumerate(kinds) if file.defended and kind in FREE)


def _csv(source: Subquery, kinds: Sequence[Kind], file: Csv, undefended: Sequence[int]) -> Select[Any]:
    texts = [
        text_of_kind(column, kind, file, defended=file.defended and number not in undefended)
        for number, (column, kind) in enumerate(zip(source.c, kinds, strict=True))
    ]
    return sa.select(*(text.label(f"c{number}") for number, text in enumerate(texts)))


def _json(source: Subquery, kinds: Sequence[Kind], columns: Sequence[Column]) -> Select[Any]:
    members = [
        value_of_kind(value, kind).label(column.name)
        for value, kind, column in zip(source.c, kinds, columns, strict=True)
    ]
    rows = sa.select(*members).subquery("line")
    line: ColumnElement[Any] = sa.func.row_to_json(sa.literal_column(f"{rows.name}.*"))  # not a column of that name
    if not {"json", "nested"}.isdisjoint(kinds):  # as it was stored, with breaks between its values
        breaks: list[ColumnElement[Any]] = [sa.literal_column("E'\\n\\r\\t'"), sa.literal_column("'   '")]
        line = sa.func.translate(sa.cast(line, sa.Text), *breaks)
    return sa.select(line.label("line")).select_from(rows)


# What may stand before a sign that begins a cell: a separator, a break, or a character that is stripped.
_BEFORE = rb'\x00-\x20",;|\x7f-\xff'
_STRIPPED = bytes([*range(9), *range(0x0E, 0x1C), 0x1F, *b' "', 0x7F])
_BREAKS = b",;|\t\r\n\x0b\x0c\x1c\x1d\x1e"
# The last bytes of letters of two and of three bytes, of which none is stripped and none a break.
_NO_LETTER = rb"(?<![\xc3-\xcc\xce-\xd7\xd9\xda].%s)(?<![\xe4-\xed]..%s)"
_NUMBER = rb"(?:[0-9]+(?:[.][0-9]*)?|[.][0-9]+)(?:[eE][+-]?[0-9]+)?"
_ASCII_MAX = 0x7F
_LOOK_BACK = 64


class BlockDefence:
    """What a file's dialect asks of blocks of whole rows.

    Args:
        texts: which of the columns, from 0 on, hold texts; what the others hold stays.
    """

    def __init__(self, file: Csv, texts: Collection[int]) -> None:
        self._file, self._texts = file, frozenset(texts)
        self._separator = file.separator.encode()
        separator = re.escape(self._separator)
        self._ascii = {sign.encode(): _search(sign, separator) for sign in SIGNS if sign.isascii()}
        self._ascii |= {b"\t": re.compile(rb'\t(?<![^"\n%s]\t)' % separator), b"\r": re.compile(rb'\r(?<="\r)')}
        self._wide = _wide_signs()
        self._field = re.compile(rb'("(?:[^"]|"")*"|[^"\n%s]*)([\n%s])' % (separator, separator))

    def defended(self, block: bytes, rows: int, *, broken: bool) -> tuple[bytes, int]:
        """The block with the texts of its lines defended, and how many lines had to be taken apart for it.

        Args:
            rows: how many the block has.
            broken: a text of it has several lines.
        """
        if not self._texts:
            return block, 0
        if broken:
            return self._lines(block), rows
        pieces, end, taken = [], 0, 0
        for place in self._places(block):
            start = block.rfind(b"\n", 0, place) + 1
            if place < end or not self._may_be_text(block, start, place):
                continue
            before = end
            end = block.index(b"\n", place) + 1
            pieces += [block[before:start], self._lines(block[start:end])]
            taken += 1
        return (b"".join([*pieces, block[end:]]), taken) if pieces else (block, 0)

    def _may_be_text(self, block: bytes, start: int, place: int) -> bool:
        """Whether a place in the line that begins at `start` lies in a column of texts, as far as one look tells."""
        quoted = block.find(b'"', start, place) >= 0
        return quoted or block.count(self._separator, start, place) in self._texts

    def _places(self, block: bytes) -> list[int]:
        """Where a text may be that needs a look, in order: at all of those, and at few others."""
        looks = [look for sign, look in self._ascii.items() if sign in block]
        places = [match.start() for look in looks for match in look.finditer(block)]
        places = [place for place in places if _begins_cell(block, place)]
        if not block.isascii():
            places += [match.start() for look in self._wide for match in look.finditer(block)]
        return sorted(places)

    def _lines(self, lines: bytes) -> bytes:
        return b"".join(self._fields(lines))

    def _fields(self, lines: bytes) -> Iterator[bytes]:
        column = 0
        for match in self._field.finditer(lines):
            field, end = match.groups()
            yield self._text(field) if column in self._texts and field else field
            yield end
            column = 0 if end == b"\n" else column + 1

    def _text(self, field: bytes) -> bytes:
        text = (field[1:-1].replace(b'""', b'"') if field[:1] == b'"' else field).decode()
        defended = self._file.defend(text)
        return field if defended == text else self._file.in_quotes(defended).encode()


def _search(sign: str, separator: bytes) -> re.Pattern[bytes]:
    """One sign that may begin a cell, but for a plain number that is a whole field.

    It begins with the sign itself, so that the search runs from one to the next at the memory's speed.
    """
    literal = re.escape(sign.encode())
    whole_number = rb"(?!(?<![^\n%s]%s)%s[\n%s])" % (separator, literal, _NUMBER, separator)
    no_letter = _NO_LETTER % (literal, literal)
    number = whole_number if sign in "+-" else b""
    return re.compile(rb"%s(?<![^%s]%s)%s%s" % (literal, _BEFORE, literal, no_letter, number), re.DOTALL)


def _wide_signs() -> list[re.Pattern[bytes]]:
    """The forms of signs beyond ASCII, by the byte with which they begin."""
    forms = [sign.encode() for sign in SIGNS if not sign.isascii()]
    firsts = sorted({form[:1] for form in forms})
    return [
        re.compile(re.escape(first) + b"(?:" + b"|".join(re.escape(f[1:]) for f in forms if f[:1] == first) + b")")
        for first in firsts
    ]


def _begins_cell(block: bytes, place: int) -> bool:
    """Whether what stands before is a break, a separator or the beginning, but for what programs strip."""
    before = block[max(0, place - _LOOK_BACK) : place].rstrip(_STRIPPED)
    return not before or before[-1] in _BREAKS or before[-1] > _ASCII_MAX


BLOCK_BYTES = 256 * 1024
_KEPT_BYTES = 4 * BLOCK_BYTES
_ROW = itemgetter(1)
_NOT_ARRIVED = (0, b"")  # what libpq gives for a row that is under way; after the last one a length below 0
PAUSE_SECONDS = 0.0005  # a socket holds 0.2 MB: 400 MB/s


def can_copy(connection: Connection) -> bool:
    """Whether the driver is psycopg and the database is in UTF-8: a text's first character is then a code point.

    A server that takes backslashes for escapes in every text would not read quotes as `sql_tokens` does.
    """
    driver = _driver(connection)
    settings = {"server_encoding": "UTF8", "standard_conforming_strings": "on"}
    return isinstance(driver, psycopg.Connection) and all(
        driver.info.parameter_status(name) == value for name, value in settings.items()
    )


def copy_rows(
    source: ChunkSource, file: Format, connection: Connection
) -> Iterator[tuple[bytes | memoryview, int, int]]:
    """Blocks of about 256 KiB, not packed, each with the number of its rows, and of those that looked like formulas.

    A block is good until the next one.

    Raises:
        psycopg.Error: what the server says.
    """
    assert source.select is not None
    statement = _copy_statement(connection, source.select, source.columns, file, defends=source.formulas)
    driver = _driver(connection)
    with driver.cursor() as cursor, cursor.copy(statement.text) as copy:
        blocks = _blocks(copy, driver.pgconn)
        if isinstance(file, Ndjson) and file.big_integers == "text":
            yield from ((file.spelled(bytes(block)), rows, 0) for block, rows in blocks)
            return
        if not isinstance(file, Csv) or file.line_end == "\n":
            yield from ((block, rows, 0) for block, rows in blocks)
            return
        defence, line_end = BlockDefence(file, statement.undefended), file.line_end.encode()
        for block, rows in blocks:
            lines, suspicious = _as_in_file(bytes(block), rows, line_end, defence)
            yield lines, rows, suspicious


def _as_in_file(lines: bytes, rows: int, line_end: bytes, defence: BlockDefence) -> tuple[bytes, int]:
    """The rows with their texts defended and the file's line ends, and how many of them looked like formulas."""
    ended = lines.replace(b"\n", line_end)
    broken = len(ended) - len(lines) != rows * (len(line_end) - 1)  # a text has breaks of its own; not counted again
    defended, suspicious = defence.defended(lines, rows, broken=broken)
    if broken:
        return _ended_outside_quotes(defended, line_end), suspicious
    return ended if defended is lines else defended.replace(b"\n", line_end), suspicious


def _driver(connection: Connection) -> Any:
    return connection.connection.driver_connection


def _blocks(copy: Any, pgconn: Any) -> Iterator[tuple[memoryview, int]]:
    """Rows joined, and how many: at most `BLOCK_BYTES`, one row, and what libpq holds at a time.

    `copy` waits for a row; those that have arrived by then are taken at once. To ask psycopg for every row costs
    the client three times as much. To wake for each of the server's sends of 8 KiB makes a whole report a thirtieth
    slower: a moment later the socket is full.
    """
    buffer, rows, ended = BytesIO(), 0, False
    while not ended and (row := copy.read()):
        buffer.write(row)
        rows += 1
        arrived = 1
        while arrived and not ended and buffer.tell() < BLOCK_BYTES:  # a server that is faster never lets it run dry
            pgconn.consume_input()
            arrived, ended = _take_arrived(pgconn, buffer)
            rows += arrived
        if ended:
            _end(pgconn)
        if buffer.tell() >= BLOCK_BYTES:
            yield from _written(buffer, rows)
            rows = 0
        elif not ended:
            time.sleep(PAUSE_SECONDS)
    if rows:
        yield from _written(buffer, rows)


def _written(buffer: BytesIO, rows: int) -> Iterator[tuple[memoryview, int]]:
    """What the buffer holds, not copied; then it is empty, in the same memory unless a long row made that large."""
    with buffer.getbuffer() as whole, whole[: buffer.tell()] as block:
        yield block, rows
    buffer.seek(0)
    if len(buffer.getbuffer()) > _KEPT_BYTES:
        buffer.truncate()


def _take_arrived(pgconn: Any, buffer: BytesIO) -> tuple[int, bool]:
    """Append the rows that libpq holds: how many, and whether the last one is among them.

    A report is as fast as this loop. Each row is copied before the next is taken, while it is in the CPU's cache:
    kept until they are joined, the rows would cost three times as much. After the last one comes an empty one.
    """
    rows = 0
    for length in map(buffer.write, map(_ROW, iter(partial(pgconn.get_copy_data, 1), _NOT_ARRIVED))):
        if not length:
            return rows, True
        rows += 1
    return rows, False


def _end(pgconn: Any) -> None:
    """Take the result that ends a COPY.

    Raises:
        psycopg.Error: the server broke off.
    """
    result = pgconn.get_result()
    while (following := pgconn.get_result()) is not None:
        result = following
    if result is None or result.status != pq.ExecStatus.COMMAND_OK:
        raise psycopg.errors.error_from_result(result) if result else psycopg.OperationalError("COPY ended early")


def _ended_outside_quotes(block: bytes, line_end: bytes) -> bytes:
    """The rows, which end with LF, ending as the file's lines do. A LF inside quotes is a text's own."""
    pieces = block.split(b'"')
    for number in range(0, len(pieces), 2):  # what stands between quoted texts; a doubled quote leaves none between
        pieces[number] = pieces[number].replace(b"\n", line_end)
    return b'"'.join(pieces)
