"""Files as programs in other languages read them, and libraries that take less than the standard admits.

Each reader is one process, which reads all files. Those of npm are pinned in `.ci/run`.
"""

from __future__ import annotations

import csv
import hashlib
import importlib
import io
import json
import os
import subprocess
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import duckdb
import polars as pl
import pytest
import sqlalchemy as sa
import zstandard
from python_calamine import CalamineWorkbook

from effects_reports.formats import fragments as sheet_rows
from effects_reports.formats.arrow import with_kinds
from effects_reports.formats.base import DIALECTS, ChunkSource, Column
from tests.formats.books import NASTY
from tests.formats.rows import part, whole
from tests.support import needs
from tests.support.sampling import is_full

Rows: TypeAlias = list[list[Any]]
Book: TypeAlias = list[Rows]

SCRIPT = Path(__file__).parent / "readers" / "read.cjs"
LIKE_TAGS = ['r="', 'r="B7"', '<c r="A1">', '7">', '12">', '<row r="9">', 'c r="A5"/>', '">']
COLUMNS = tuple(Column(f"c{number}", f"head {number}") for number in range(4))
HEADER = [column.header for column in COLUMNS]


def _run(*command: str | Path, **environment: str) -> str:
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env={**os.environ, **environment}
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def _by_node(package: str, reader: str, files: Sequence[Path]) -> Any:
    """Of one of Node.js itself, the package is empty."""
    folder = needs.npm(package) if package else ""
    return json.loads(_run(needs.program("node"), SCRIPT, reader, *files, NODE_PATH=folder))


# -- workbooks ---------------------------------------------------------------------------------------------------


def book(rows: Sequence[Sequence[Any]], size: int, error: int = 0) -> bytes:
    """A file of one part for every `size` rows, each of which was planned so many rows further below."""
    sources = [
        ChunkSource(COLUMNS, rows=rows[start : start + size], rows_before=start + error)
        for start in range(0, len(rows), size)
    ]
    return whole(COLUMNS, [part(source, "xlsx")[0] for source in sources], "xlsx")


def nasty_rows() -> Rows:
    """Texts that look like tags, NULLs at either end of a row, and a row of NULLs."""
    rows: Rows = [[text, n, n % 2 == 0, n / 8 if n % 3 else None] for n, text in enumerate([*NASTY, *LIKE_TAGS])]
    return [*rows[:5], [None] * 4, [None, 9, None, 1], *rows[5:]]


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, Book]]:
    """Workbooks with the sheets that a reader must find: one, several, thousands of rows, a header alone."""
    folder, nasty = tmp_path_factory.mktemp("books"), nasty_rows()
    many: Rows = [[f"text {number}", number, number % 2 == 0, None] for number in range(3_000)]
    files = {
        "nasty": (book(nasty, 7, error=3), [nasty]),
        "many": (book(many, 700), [many]),
        "empty": (book([], 7), [[]]),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sheet_rows, "ROWS_MAX", 10)
        files["sheets"] = (book(nasty, 7), [nasty[start : start + 10] for start in range(0, len(nasty), 10)])
    written = []
    for name, (data, sheets) in files.items():
        path = folder / f"{name}.xlsx"
        path.write_bytes(data)
        written.append((path, [[HEADER, *rows] for rows in sheets]))
    return written


def _by_xlsx2csv(files: Sequence[Path]) -> list[Book]:
    try:
        convert = importlib.import_module("xlsx2csv").Xlsx2csv
    except ImportError:
        needs.missing("xlsx2csv is not installed: it is in the extra `test`")
    return [[_converted(convert, file, number + 1) for number in range(_sheets_of(file))] for file in files]


def _converted(convert: Any, file: Path, sheet: int) -> Rows:
    out = io.StringIO()
    convert(str(file), outputencoding="utf-8", lineterminator="\n", skip_empty_lines=False).convert(out, sheetid=sheet)
    return list(csv.reader(io.StringIO(out.getvalue(), newline="")))


def _by_gnumeric(file: Path) -> Book:
    _run(needs.program("ssconvert"), "-S", file, file.with_name(f"{file.stem}.%n.csv"))
    exported = [file.with_name(f"{file.stem}.{number}.csv") for number in range(_sheets_of(file))]
    return [list(csv.reader(io.StringIO(sheet.read_text(), newline=""))) for sheet in exported]


def _sheets_of(file: Path) -> int:
    return len(CalamineWorkbook.from_path(file).sheet_names)


def _by_calamine(files: Sequence[Path]) -> list[Book]:
    books = map(CalamineWorkbook.from_path, files)
    return [[book.get_sheet_by_name(name).to_python() for name in book.sheet_names] for book in books]


SHEET_READERS: dict[str, Callable[[Sequence[Path]], list[Book]]] = {
    "exceljs": lambda files: _by_node("exceljs", "exceljs", files),
    "SheetJS": lambda files: _by_node("xlsx", "sheetjs", files),
    "read-excel-file": lambda files: _by_node("read-excel-file", "read-excel-file", files),
    "xlsx2csv": _by_xlsx2csv,
    "calamine": _by_calamine,
}
if is_full():
    SHEET_READERS["Gnumeric"] = lambda files: [_by_gnumeric(file) for file in files]
ESCAPES_KEPT = {"exceljs", "xlsx2csv", "Gnumeric"}  # which leave Excel's escape of what looks like an escape as it is
TEXTS_ONLY = {"xlsx2csv", "Gnumeric"}


@pytest.mark.slow
@pytest.mark.parametrize("reader", SHEET_READERS)
def test_every_reader_finds_every_cell(reader: str, books: list[tuple[Path, Book]]) -> None:
    books_seen = SHEET_READERS[reader]([path for path, _ in books])
    for sheets, (path, expected) in zip(books_seen, books, strict=True):
        seen = [[_seen(row, reader) for row in rows] for rows in sheets]
        assert seen == [[_expected(row, reader) for row in rows] for rows in expected], path.name


def _seen(row: Sequence[Any], reader: str) -> list[Any]:
    if reader in ESCAPES_KEPT:
        row = [cell.replace("_x005F_", "_") if isinstance(cell, str) else cell for cell in row]
    return _stripped(row)


def _expected(row: Sequence[Any], reader: str) -> list[Any]:
    return _stripped([None if cell is None else _text(cell) for cell in row] if reader in TEXTS_ONLY else row)


def _text(cell: Any) -> Any:
    return str(cell).upper() if isinstance(cell, bool) else f"{cell:g}" if isinstance(cell, float) else str(cell)


def _stripped(row: Sequence[Any]) -> list[Any]:
    """A row without the empty cells at its end: readers do not tell an empty text, a NULL and no cell apart."""
    cells = [None if cell == "" else cell for cell in row]
    while cells and cells[-1] is None:
        cells.pop()
    return cells


# -- CSV and Parquet ---------------------------------------------------------------------------------------------

CSV_READERS = {
    "ruby": (
        "-rcsv", "-rjson", "-e", """puts ARGV.map { |file|
            CSV.read(file, encoding: "bom|utf-8", col_sep: file.include?("semicolon") ? ";" : ",") }.to_json""",
    ),
    "php": (
        "-r", """foreach (array_slice($argv, 1) as $at => $file) {
            $separator = str_contains($file, "semicolon") ? ";" : ",";
            if (fread($open = fopen($file, "rb"), 3) !== "\\xEF\\xBB\\xBF") rewind($open);
            for ($rows = []; ($row = fgetcsv($open, 0, $separator, '"', "")) !== false; $rows[] = $row);
            $files[$at] = $rows;
        } echo json_encode($files);""", "--",
    ),
}  # fmt: skip


@pytest.mark.parametrize("reader", CSV_READERS)
def test_other_readers_of_csv_find_what_pythons_finds(reader: str, tmp_path: Path) -> None:
    files, expected = [], []
    for dialect in DIALECTS:
        path = tmp_path / f"{dialect}.csv"
        path.write_bytes(
            whole(COLUMNS, [part(ChunkSource(COLUMNS, rows=nasty_rows()), "csv", dialect)[0]], "csv", dialect)
        )
        separator = ";" if "semicolon" in dialect else ","
        text = path.read_bytes().decode("utf-8-sig")
        files.append(path)
        expected.append(list(csv.reader(io.StringIO(text, newline=""), delimiter=separator)))
    seen = json.loads(_run(needs.program(reader), *CSV_READERS[reader], *files))
    assert [[[field or "" for field in row] for row in rows] for rows in seen] == expected
    assert {len(rows) for rows in expected} == {1 + len(nasty_rows())}


def test_a_reader_of_parquet_that_is_not_arrows_finds_every_value(tmp_path: Path) -> None:
    kinds = (sa.Text(), sa.BigInteger(), sa.Boolean(), sa.Float())
    columns = [replace(column, type=kind) for column, kind in zip(COLUMNS, kinds, strict=True)]
    rows, path = nasty_rows(), tmp_path / "nasty.parquet"
    parts = [part(ChunkSource(tuple(columns), rows=rows[at : at + 7]), "parquet")[0] for at in range(0, len(rows), 7)]
    path.write_bytes(whole(with_kinds(columns), parts, "parquet"))
    [seen] = _by_node("hyparquet", "hyparquet", [path])
    assert seen == rows


# -- packed files ------------------------------------------------------------------------------------------------

PACKED = ("csv.gz", "ndjson.gz", "csv.zst", "ndjson.zst")
PHP = """foreach (array_slice($argv, 1) as $file) {
    echo hash("sha256", gzdecode(file_get_contents($file))), "\n";
    for ($whole = "", $open = gzopen($file, "rb"); !gzeof($open); $whole .= gzread($open, 8192));
    echo hash("sha256", $whole), "\n";
}"""
RUBY = """require "digest"
ARGV.each { |file| [Zlib::GzipReader.open(file, &:read), Zlib.gunzip(File.binread(file))].each { |whole|
    puts Digest::SHA256.hexdigest(whole) } }"""
PERL = """for (@ARGV) { gunzip($_ => \\my $whole) or die $GunzipError; print sha256_hex($whole), "\n" }"""


def packed(name: str, rows: int, size: int) -> bytes:
    data: Rows = [[f"{number * 7919 % 1000:>150}", number, number % 2 == 0, None] for number in range(rows)]
    sources = [ChunkSource(COLUMNS, rows=data[start : start + size]) for start in range(0, rows, size)]
    return whole(COLUMNS, [part(source, name)[0] for source in sources], name)


@pytest.fixture(scope="module")
def packed_files(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, str]]:
    """Without rows, of small parts, and of parts of several blocks; each with the SHA-256 of its content."""
    folder, files = tmp_path_factory.mktemp("packed"), []
    for name in PACKED:
        for rows, size in ((0, 1), (50, 7), (12_000, 8_000)):
            path = folder / f"{rows}.{name}"
            path.write_bytes(packed(name, rows, size))
            plain = packed(name.rpartition(".")[0], rows, size)
            files.append((path, hashlib.sha256(plain).hexdigest()))
    return files


def _by_program(name: str, *arguments: str) -> Callable[[Sequence[Path]], list[str]]:
    return lambda files: _run(needs.program(name), *arguments, *files).split()


def _in_python(read: Callable[[bytes], bytes]) -> Callable[[Sequence[Path]], list[str]]:
    return lambda files: [hashlib.sha256(read(file.read_bytes())).hexdigest() for file in files]


# Each with the kind of files that it reads, and how many digests it prints of each.
UNPACKERS: dict[str, tuple[str, int, Callable[[Sequence[Path]], list[str]]]] = {
    "php": (".gz", 2, _by_program("php", "-r", PHP, "--")),
    "ruby": (".gz", 2, _by_program("ruby", "-rzlib", "-e", RUBY)),
    "perl": (".gz", 1, _by_program("perl", "-MIO::Uncompress::Gunzip=:all", "-MDigest::SHA=sha256_hex", "-e", PERL)),
    "fflate": (".gz", 1, lambda files: _by_node("fflate", "fflate", files)),
    "node:zlib": (".gz", 1, lambda files: _by_node("", "node:zlib", files)),
    "zlib": (".gz", 1, _in_python(lambda data: zlib.decompressobj(31).decompress(data))),
    "fzstd": (".zst", 1, lambda files: _by_node("fzstd", "fzstd", files)),
    "zstandard": (".zst", 1, _in_python(lambda data: zstandard.ZstdDecompressor().decompressobj().decompress(data))),
}


@pytest.mark.slow
@pytest.mark.parametrize("reader", UNPACKERS)
def test_every_reader_unpacks_the_whole_file(reader: str, packed_files: list[tuple[Path, str]]) -> None:
    kind, times, read = UNPACKERS[reader]
    files = [(path, digest) for path, digest in packed_files if path.name.endswith(kind)]
    assert read([path for path, _ in files]) == [digest for _, digest in files for _ in range(times)]


def _by_duckdb(path: Path, kind: str) -> int:
    read = {"csv": f"read_csv('{path}', header = true)", "ndjson": f"read_ndjson('{path}')"}[kind]
    [[count]] = duckdb.sql(f"SELECT count(*) FROM {read}").fetchall()
    return int(count)


def _by_polars(path: Path, kind: str) -> int:
    return (pl.read_csv(path) if kind == "csv" else pl.read_ndjson(path)).height


@pytest.mark.slow
@pytest.mark.parametrize("read", [_by_duckdb, _by_polars])
def test_a_library_for_tables_finds_all_rows(
    read: Callable[[Path, str], int], packed_files: list[tuple[Path, str]]
) -> None:
    rows = {path.name: int(path.name.partition(".")[0]) for path, _ in packed_files}
    counts = {path.name: read(path, path.name.split(".")[1]) for path, _ in packed_files if rows[path.name]}
    assert counts == {name: count for name, count in rows.items() if count}
