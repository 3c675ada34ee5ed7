"""XLSX (ECMA-376): sheets joined from the deflated rows of parts, without unpacking them."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from types import MappingProxyType
from typing import Any
from xml.sax.saxutils import quoteattr
from zoneinfo import ZoneInfo

from effects.extend.files import Writer
from effects_reports.errors import ReportRefused
from effects_reports.formats import fragments as sheet_rows
from effects_reports.formats.base import Column, Packing, Part, Workbook
from effects_reports.formats.fragments import (
    BOLD,
    DAY,
    DECIMAL,
    DECIMALS_MAX,
    HEADER_ROWS,
    MOMENT,
    Fragment,
    deflated,
    encode_rows,
    framed,
    in_zone,
    joined_crc,
    letters,
    numbered,
    read_frames,
    rows_in,
    rows_of,
    shortened,
)

COVER = "About"
_TEXT = Column("text", "text")


def _cover_rows(title: str, facts: Mapping[str, str]) -> bytes:
    """A title, an empty row, and a row for each fact, cut where it is too long for a cell."""
    columns = (_TEXT, _TEXT)
    head = encode_rows(columns, [[title, None], [None, None]], style=BOLD)
    if facts:
        head += encode_rows(columns, [shortened(list(many))[0] for many in (facts, facts.values())])
    return numbered(rows_of(head), 1)


def _totals_row(
    columns: Sequence[Column], totals: Sequence[str], sheets: Sequence[tuple[str, int]], styles: Mapping[str, int],
    row: int,
) -> bytes:  # fmt: skip
    """The sums of these columns over all sheets, each given by its name and its rows under the header, as this row."""
    cells = []
    for number, column in enumerate(columns):
        if column.name in totals:
            ranges = ",".join(_range(name, letters(number), rows) for name, rows in sheets)
            style = f' s="{styles[column.kind]}"' if column.kind in styles else ""
            cells.append(f'<c{style} r="{letters(number)}{row}"><f>SUM({ranges})</f></c>')
        elif not number:
            cells.append(f'<c s="{BOLD}" t="inlineStr" r="A{row}"><is><t>Total</t></is></c>')
    return f'<row r="{row}">{"".join(cells)}</row>'.encode()


def _free_name(name: str, names: Sequence[str]) -> str:
    """The name, or with an underscore where a sheet has it; Excel sees no difference of case."""
    while name.lower() in {each.lower() for each in names}:
        name += "_"
    return name


def _range(sheet: str, column: str, rows: int) -> str:
    return f"'{sheet}'!{column}2:{column}{max(rows, 1) + 1}".replace("&", "&amp;").replace("<", "&lt;")


_ENTRY_BYTES_MAX = 2**32 - 1
_FAR, _ENTRIES_MAX = 2**32 - 1, 2**16 - 1  # where a field of the first ZIP says: look into that of Zip64
_DESCRIPTOR_FOLLOWS, _DEFLATED = 0x0808, 8  # and names are UTF-8
_VERSION, _VERSION_ZIP64 = 20, 45
_TIME, _DAY = 0, (2000 - 1980) << 9 | 1 << 5 | 1  # the same bytes whenever it is written
_LOCAL = struct.Struct("<IHHHHHIIIHH")
_DESCRIPTOR = struct.Struct("<IIII")
_CENTRAL = struct.Struct("<IHHHHHHIIIHHHHHII")
_OFFSET = struct.Struct("<HHQ")
_END64 = struct.Struct("<IQHHIIQQQQ")
_LOCATOR = struct.Struct("<IIQI")
_END = struct.Struct("<IHHHHIIH")


class Archive:
    """Entries one after the other; `end` completes the archive, the writer's `finish` is the caller's."""

    def __init__(self, out: Writer) -> None:
        self._out, self._written = out, 0
        self._directory: list[bytes] = []

    def add(self, name: str, data: bytes) -> None:
        """A small entry."""
        self.begin(name)
        self.fragment(data)
        self.close()

    def begin(self, name: str) -> None:
        self._name, self._offset = name.encode(), self._written
        self._crc = self.plain = self._packed = 0
        self._put(
            _LOCAL.pack(0x04034B50, _VERSION, _DESCRIPTOR_FOLLOWS, _DEFLATED, _TIME, _DAY, 0, 0, 0, len(self._name), 0)
            + self._name
        )

    def fragment(self, data: bytes) -> None:
        """Bytes of the entry, deflated here."""
        self.deflated(deflated(data))
        self.count(len(data), zlib.crc32(data))

    def deflated(self, packed: bytes) -> None:
        """A piece of the entry's deflate stream; `count` says of what."""
        self._put(packed)
        self._packed += len(packed)

    def count(self, plain: int, crc: int) -> None:
        """So many bytes with this CRC-32 are what the pieces since the last count hold."""
        self._crc = joined_crc(self._crc, crc, plain)
        self.plain += plain

    def close(self) -> None:
        """End the entry."""
        self.deflated(deflated(b"", last=True))
        sizes = self._crc, self._packed, self.plain
        self._put(_DESCRIPTOR.pack(0x08074B50, *sizes))
        far = self._offset > _ENTRY_BYTES_MAX
        extra = _OFFSET.pack(1, 8, self._offset) if far else b""
        version = _VERSION_ZIP64 if far else _VERSION
        self._directory.append(
            _CENTRAL.pack(
                0x02014B50, version, version, _DESCRIPTOR_FOLLOWS, _DEFLATED, _TIME, _DAY, *sizes, len(self._name),
                len(extra), 0, 0, 0, 0, _FAR if far else self._offset,
            )
            + self._name
            + extra
        )  # fmt: skip

    def end(self) -> None:
        start, directory, count = self._written, b"".join(self._directory), len(self._directory)
        self._put(directory)
        size, end = len(directory), self._written
        if start > _ENTRY_BYTES_MAX or count > _ENTRIES_MAX:
            self._put(
                _END64.pack(0x06064B50, 44, _VERSION_ZIP64, _VERSION_ZIP64, 0, 0, count, count, size, start)
                + _LOCATOR.pack(0x07064B50, 0, end, 1)
            )
        counted = min(count, _ENTRIES_MAX)
        self._put(_END.pack(0x06054B50, 0, 0, counted, counted, size, min(start, _FAR), 0))

    def _put(self, data: bytes) -> None:
        self._out.write(data)
        self._written += len(data)


_COLUMNS_MAX = 16_384
SHEET_BYTES_MAX = _ENTRY_BYTES_MAX - 2**20
_COVER_FILE = "worksheets/cover.xml"
_FIRST_LOOK = DECIMAL + DECIMALS_MAX + 1  # the style of the first number format of the report's own
_DATE_WORDS = frozenset("ydh")
_WIDTHS = {DAY: 11.0, MOMENT: 19.0}  # so that a cell does not show ##### in place of its day
_SAMPLE_ROWS = 1000
_dated_cells = re.compile(rb'<c s="(%d|%d)" r="([A-Z]+)' % tuple(_WIDTHS)).findall

_XML = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
_MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_TYPES = "application/vnd.openxmlformats-officedocument.spreadsheetml"

Frames = Iterator[tuple[Fragment, Iterator[bytes]]]


class Xlsx:
    """A workbook: a bold header that stays in view, real numbers, days and times; a further sheet past 1,048,576 rows.

    Moments are in UTC. Texts are texts, never formulas or links. Integers of more than 15 digits, decimals of more,
    and days before March 1900 are texts: Excel would change them.
    """

    name = "xlsx"
    extension = ".xlsx"
    content_type = f"{_TYPES}.sheet"
    rows_max: int | None = None
    columns_max: int | None = _COLUMNS_MAX
    by_copy = False
    typed = False
    packing: Packing = "sheet"

    def __init__(
        self, workbook: Workbook | None = None, facts: Mapping[str, str] = MappingProxyType({}),
        styled: Sequence[Column] | None = None,
    ) -> None:  # fmt: skip
        """Of a sheet beside others, `styled` are the columns of all: the file has one list of styles."""
        self._workbook, self._facts = workbook or Workbook(), facts
        self._styled = styled
        self._zone = ZoneInfo(self._workbook.zone) if self._workbook.zone else None
        self.texts_cut = 0

    def with_looks(self, columns: Sequence[Column]) -> tuple[Column, ...]:
        """The columns, each with its number format as its kind, which the plan freezes."""
        formats = self._workbook.formats
        return tuple(replace(column, kind=formats.get(column.name, "")) for column in columns)

    def encode(self, columns: Sequence[Column], values: Sequence[Sequence[Any]]) -> bytes:
        """As `Format.encode`.

        Raises:
            ReportRefused: a text is longer than a cell can hold, and is not to be cut.
        """
        return encode_rows(columns, [self._shown(many) for many in values], looks=_looks(self._styled or columns))

    def _shown(self, values: Sequence[Any]) -> Sequence[Any]:
        if self._zone is not None:
            values = in_zone(values, self._zone)
        if self._workbook.long_texts == "cut":
            values, cut = shortened(values)
            self.texts_cut += cut
        return values

    def assemble(self, columns: Sequence[Column], parts: Iterable[Part], out: Writer) -> None:
        """As `Format.assemble`.

        Raises:
            ReportRefused: there are more columns than a sheet holds.
        """
        self.assemble_sheets([Sheet(self._workbook, columns, parts)], out)

    def assemble_sheets(self, sheets: Sequence[Sheet], out: Writer) -> None:
        """`assemble`, of several sheets in their order; the cover is the workbook's own.

        Raises:
            ReportRefused: there are more columns than a sheet holds.
        """
        for sheet in sheets:
            if (columns := len(sheet.columns)) > _COLUMNS_MAX:
                raise ReportRefused(f"XLSX holds {_COLUMNS_MAX:,} columns, not {columns:,}", code="xlsx_too_wide")
        looks = _looks([column for sheet in sheets for column in sheet.columns])
        archive = Archive(out)
        archive.add("_rels/.rels", _relationships({"xl/workbook.xml": f"{_OFFICE}/officeDocument"}).encode())
        archive.add("xl/styles.xml", _styles(looks).encode())
        names: list[str] = []
        for number, sheet in enumerate(sheets, 1):
            reserved = [later.workbook.sheet for later in sheets[number:]]
            filling = _FilledSheet(archive, sheet, looks, names, reserved)
            filling.fill(chain.from_iterable(map(read_frames, sheet.parts)))
        cover = self._workbook.cover
        if cover is not None:
            archive.add(f"xl/{_COVER_FILE}", _cover(cover, self._facts))
        for name, xml in _after(names, cover=cover is not None).items():
            archive.add(name, xml.encode())
        archive.end()


@dataclass(frozen=True, slots=True)
class Sheet:
    """What a sheet of a file is made of."""

    workbook: Workbook
    columns: Sequence[Column]
    parts: Iterable[Part]


class _FilledSheet:
    """A sheet, and those that follow it where it is full.

    Args:
        looks: number format → its style, of all sheets.
        names: of all sheets of the file so far; those of this one are added.
        reserved: names of sheets to come.
    """

    def __init__(
        self, archive: Archive, sheet: Sheet, looks: Mapping[str, int], names: list[str], reserved: Sequence[str]
    ) -> None:
        self._archive, self._columns, self._workbook = archive, sheet.columns, sheet.workbook
        self._looks, self._all_names, self._reserved = looks, names, reserved
        self._opening = b""
        self._rows = 0
        self.names: dict[str, int] = {}  # each with its rows

    def fill(self, frames: Frames) -> None:
        for fragment, pieces in frames:
            if not self.names:
                start = b"".join(pieces)  # about 256 KiB or one row
                self._open(self._widths(rows_in(fragment, start)))
                pieces = iter([start])  # noqa: PLW2901 - the same bytes
            elif self._archive.plain + fragment.plain > SHEET_BYTES_MAX:
                self._begin_further()
            if fragment.first == self._next_row and fragment.rows <= self._free_rows:
                self._take(fragment, pieces)
            else:
                self._number_again(rows_in(fragment, b"".join(pieces)))
        if not self.names:
            self._open(self._widths([]))
        self._total()
        self._close()

    @property
    def _next_row(self) -> int:
        return self._rows + HEADER_ROWS + 1

    @property
    def _free_rows(self) -> int:
        return sheet_rows.ROWS_MAX - self._rows

    def _take(self, fragment: Fragment, pieces: Iterable[bytes]) -> None:
        for piece in pieces:
            self._archive.deflated(piece)
        self._archive.count(fragment.plain, fragment.crc)
        self._rows += fragment.rows
        self.names[self._name] = self._rows

    def _number_again(self, rows: Sequence[bytes]) -> None:
        """Take the rows of a frame that does not begin where its chunk expected, or ends in a further sheet."""
        while rows:
            if not self._free_rows:
                self._begin_further()
            here, rows = rows[: self._free_rows], rows[self._free_rows :]
            fragment, packed = framed(here, self._next_row)
            self._take(fragment, [packed])

    def _begin_further(self) -> None:
        self._close()
        self._begin()

    def _widths(self, start: Sequence[bytes]) -> dict[int, float]:
        widths = _widths(start[:_SAMPLE_ROWS], len(self._columns))
        for number, column in enumerate(self._columns):
            if not _DATE_WORDS.isdisjoint(column.kind.lower()):
                widths[number] = max(_WIDTHS[DAY], len(column.kind) + 2.0)
            widths[number] = self._workbook.widths.get(column.name, widths.get(number, 0.0))
        return {number: width for number, width in widths.items() if width}

    def _total(self) -> None:
        if not self._workbook.totals:
            return
        sheets = list(self.names.items())
        if not self._free_rows:
            self._begin_further()
        self._archive.fragment(_totals_row(self._columns, self._workbook.totals, sheets, self._looks, self._next_row))

    def _open(self, widths: dict[int, float]) -> None:
        header = encode_rows(self._columns, [[column.header] for column in self._columns], style=BOLD)
        self._opening = f"{_opening(widths)}<sheetData>".encode() + numbered(rows_of(header), HEADER_ROWS)
        self._begin()

    def _begin(self) -> None:
        number = len(self.names) + 1
        name = self._workbook.sheet if number == 1 else f"{self._workbook.sheet} {number}"
        self._name = _free_name(name, [*self._all_names, *self._reserved])
        self._all_names.append(self._name)
        self.names[self._name] = self._rows = 0
        self._archive.begin(f"xl/worksheets/sheet{len(self._all_names)}.xml")
        self._archive.fragment(self._opening)

    def _close(self) -> None:
        self._archive.fragment(b"</sheetData></worksheet>")
        self._archive.close()


def _widths(rows: Sequence[bytes], columns: int) -> dict[int, float]:
    """Column → width, where the first rows have days or moments. A later one shrinks until it fits (its style)."""
    numbers = {letters(number).encode(): number for number in range(columns)}
    widths: dict[int, float] = {}
    for style, name in _dated_cells(b"".join(rows)):
        if (number := numbers.get(name)) is not None:  # else the part is broken
            widths[number] = max(_WIDTHS[int(style)], widths.get(number, 0.0))
    return widths


def _opening(widths: dict[int, float]) -> str:
    columns = "".join(
        f'<col min="{number + 1}" max="{number + 1}" width="{width:g}" customWidth="1"/>'
        for number, width in sorted(widths.items())
    )
    return (
        f'{_XML}<worksheet xmlns="{_MAIN}"><sheetViews><sheetView workbookViewId="0">'
        '<pane ySplit="1" topLeftCell="A2" activePane="bottomLeft" state="frozen"/></sheetView></sheetViews>'
        f"{f'<cols>{columns}</cols>' if columns else ''}"
    )


# -- the other files of the archive ------------------------------------------------------------------------------


def _relationships(targets: dict[str, str]) -> str:
    lines = "".join(
        f'<Relationship Id="rId{number}" Type={quoteattr(kind)} Target={quoteattr(target)}/>'
        for number, (target, kind) in enumerate(targets.items(), 1)
    )
    return f'{_XML}<Relationships xmlns="{_PACKAGE}/relationships">{lines}</Relationships>'


def _looks(columns: Sequence[Column]) -> dict[str, int]:
    """Number format → its style."""
    codes = dict.fromkeys(column.kind for column in columns if column.kind)
    return {code: _FIRST_LOOK + number for number, code in enumerate(codes)}


def _styles(looks: Iterable[str]) -> str:
    """In the order of the numbers that `fragments` has for them; the report's own behind them."""
    shapes = ["yyyy-mm-dd", "yyyy-mm-dd hh:mm:ss", "hh:mm:ss", "0"]
    shapes += [f"0.{'0' * digits}" for digits in range(1, DECIMALS_MAX + 1)]
    shapes += looks
    formats = "".join(f'<numFmt numFmtId="{164 + n}" formatCode={quoteattr(shape)}/>' for n, shape in enumerate(shapes))
    cells = "".join(
        f'<xf numFmtId="{164 + n}" fontId="0" fillId="0" borderId="0" xfId="0" applyNumberFormat="1"'
        + (' applyAlignment="1"><alignment shrinkToFit="1"/></xf>' if n < 3 else "/>")
        for n in range(len(shapes))
    )
    font = '<sz val="11"/><name val="Calibri"/><family val="2"/>'
    return (
        f'{_XML}<styleSheet xmlns="{_MAIN}"><numFmts count="{len(shapes)}">{formats}</numFmts>'
        f'<fonts count="2"><font>{font}</font><font><b/>{font}</font></fonts>'
        '<fills count="2"><fill><patternFill patternType="none"/></fill><fill><patternFill patternType="gray125"/>'
        '</fill></fills><borders count="1"><border><left/><right/><top/><bottom/><diagonal/></border></borders>'
        '<cellStyleXfs count="1"><xf numFmtId="0" fontId="0" fillId="0" borderId="0"/></cellStyleXfs>'
        f'<cellXfs count="{len(shapes) + 2}"><xf numFmtId="0" fontId="0" fillId="0" borderId="0" xfId="0"/>'
        f'<xf numFmtId="0" fontId="1" fillId="0" borderId="0" xfId="0" applyFont="1"/>{cells}</cellXfs>'
        '<cellStyles count="1"><cellStyle name="Normal" xfId="0" builtinId="0"/></cellStyles></styleSheet>'
    )


def _cover(title: str, facts: Mapping[str, str]) -> bytes:
    columns = "".join(f'<col min="{n}" max="{n}" width="{width}" customWidth="1"/>' for n, width in ((1, 24), (2, 60)))
    start = f'{_XML}<worksheet xmlns="{_MAIN}"><cols>{columns}</cols><sheetData>'
    return start.encode() + _cover_rows(title, facts) + b"</sheetData></worksheet>"


def _after(names: list[str], *, cover: bool) -> dict[str, str]:
    files = {name: f"worksheets/sheet{number}.xml" for number, name in enumerate(names, 1)}
    if cover:
        files = {_free_name(COVER, names): _COVER_FILE, **files}
    listed = "".join(
        f'<sheet name={quoteattr(name)} sheetId="{number}" r:id="rId{number}"/>' for number, name in enumerate(files, 1)
    )
    targets = dict.fromkeys(files.values(), f"{_OFFICE}/worksheet")
    overrides = {"xl/workbook.xml": "sheet.main", "xl/styles.xml": "styles"}
    overrides |= {f"xl/{target}": "worksheet" for target in targets}
    types = "".join(
        f'<Override PartName="/{name}" ContentType="{_TYPES}.{kind}+xml"/>' for name, kind in overrides.items()
    )
    return {
        "xl/workbook.xml": f'{_XML}<workbook xmlns="{_MAIN}" xmlns:r="{_OFFICE}"><sheets>{listed}</sheets>'
        '<calcPr fullCalcOnLoad="1"/></workbook>',
        "xl/_rels/workbook.xml.rels": _relationships({**targets, "styles.xml": f"{_OFFICE}/styles"}),
        "[Content_Types].xml": (
            f'{_XML}<Types xmlns="{_PACKAGE}/content-types">'
            f'<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
            f'<Default Extension="xml" ContentType="application/xml"/>{types}</Types>'
        ),
    }
