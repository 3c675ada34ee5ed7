"""XLSX (ECMA-376), written by xlsxwriter a row at a time when the file is put together."""

from __future__ import annotations

import datetime as dt
import importlib
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from itertools import chain
from typing import Any

from effects import ConfigurationError
from effects.extend import PIECE_BYTES, Writer
from effects_reports.errors import ReportRefused
from effects_reports.formats.base import Column, Packing
from effects_reports.formats.cells import Cell, decode_cells, encode_cells

ROWS_MAX = 1_048_575  # under the header
COLUMNS_MAX = 16_384
_CREATED = dt.datetime(2000, 1, 1)  # noqa: DTZ001 - the same bytes whenever it is written
_WIDTHS = {"d": 11.0, "t": 19.0}  # or a cell shows ##### in place of its day
_SHEET = "Report"


class Xlsx:
    """A workbook of one sheet: a bold header that stays in view, real numbers, days and times.

    Moments are in UTC. Texts are texts, never formulas or links. Integers of more than 15 digits, decimals of more,
    and days before 1900 are texts: Excel would change them. A killed assembly leaves its temporary files in TMPDIR.
    """

    name = "xlsx"
    extension = ".xlsx"
    content_type = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
    rows_max: int | None = ROWS_MAX
    columns_max: int | None = COLUMNS_MAX
    by_copy = False
    packing: Packing = ""
    encode = staticmethod(encode_cells)

    def assemble(self, columns: Sequence[Column], parts: Iterable[Iterable[bytes]], out: Writer) -> None:
        """As `Format.assemble`.

        Raises:
            ReportRefused: there are more rows or columns than a sheet holds.
        """
        with tempfile.TemporaryDirectory(prefix="effects-xlsx-") as folder, tempfile.TemporaryFile() as file:
            workbook = _xlsxwriter().Workbook(file, {"constant_memory": True, "tmpdir": folder})
            workbook.set_properties({"created": _CREATED})
            with closing(_Sheet(workbook, columns)) as sheet:
                sheet.fill(parts)
            workbook.close()
            file.seek(0)
            shutil.copyfileobj(file, out, PIECE_BYTES)


class _Sheet:
    def __init__(self, workbook: Any, columns: Sequence[Column]) -> None:
        if len(columns) > COLUMNS_MAX:
            raise ReportRefused(f"XLSX holds {COLUMNS_MAX:,} columns, not {len(columns):,}", code="xlsx_too_wide")
        self._workbook, self._columns = workbook, columns
        self._sheet = workbook.add_worksheet(_SHEET)
        self._formats = {
            "d": workbook.add_format({"num_format": "yyyy-mm-dd"}),
            "t": workbook.add_format({"num_format": "yyyy-mm-dd hh:mm:ss"}),
            "c": workbook.add_format({"num_format": "hh:mm:ss"}),
        }
        self._decimals: dict[int, Any] = {}
        self._widths: dict[int, float] = {}
        self._writers: dict[type, Callable[[int, int, Any], Any]] = {
            bool: self._sheet.write_boolean,
            int: self._sheet.write_number,
            float: self._sheet.write_number,
            str: self._sheet.write_string,
            list: self._write_tagged,
        }

    def fill(self, parts: Iterable[Iterable[bytes]]) -> None:
        bold = self._workbook.add_format({"bold": True})
        for number, column in enumerate(self._columns):
            self._sheet.write_string(0, number, column.header, bold)
        self._sheet.freeze_panes(1, 0)
        for row, cells in enumerate(chain.from_iterable(map(decode_cells, parts)), 1):
            if row > ROWS_MAX:
                raise ReportRefused(f"XLSX holds {ROWS_MAX:,} rows: ask for csv or ndjson", code="xlsx_too_long")
            self._write_row(row, cells)
        for number, width in self._widths.items():
            self._sheet.set_column(number, number, width)

    def close(self) -> None:
        """Close the file of rows, which the workbook opens again, if it is ever closed itself."""
        self._sheet._opt_close()

    def _write_row(self, row: int, cells: Sequence[Cell]) -> None:
        for number, cell in enumerate(cells):
            if cell is not None:
                self._writers[type(cell)](row, number, cell)

    def _write_tagged(self, row: int, number: int, cell: list[str]) -> None:
        tag, text = cell
        if tag == "n":
            self._sheet.write_number(row, number, float(text), self._decimal_format(len(text.partition(".")[2])))
            return
        if tag in _WIDTHS:
            self._widths[number] = max(_WIDTHS[tag], self._widths.get(number, 0.0))
        self._sheet.write_datetime(row, number, _READ[tag](text), self._formats[tag])

    def _decimal_format(self, digits: int) -> Any:
        """So that 12.50 shows both its decimals."""
        if digits not in self._decimals:
            shown = f"0.{'0' * digits}" if digits else "0"
            self._decimals[digits] = self._workbook.add_format({"num_format": shown})
        return self._decimals[digits]


_READ: dict[str, Callable[[str], Any]] = {
    "d": dt.date.fromisoformat,
    "t": dt.datetime.fromisoformat,
    "c": dt.time.fromisoformat,
}


def check_xlsx() -> None:
    """Refuse what is not installed.

    Raises:
        ConfigurationError: names the extra.
    """
    _xlsxwriter()


def _xlsxwriter() -> Any:
    try:
        return importlib.import_module("xlsxwriter")
    except ImportError as error:
        raise ConfigurationError("reports in xlsx need a writer: pip install 'effects-toolkit[xlsx]'") from error
