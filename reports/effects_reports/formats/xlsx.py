"""XLSX (ECMA-376): sheets joined from the deflated rows of parts, without unpacking them."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from xml.sax.saxutils import quoteattr

from effects.extend import Writer
from effects_reports.errors import ReportRefused
from effects_reports.formats.archive import ENTRY_BYTES_MAX, Archive
from effects_reports.formats.base import Column, Packing, Part
from effects_reports.formats.cells import BOLD, DAY, DECIMALS_MAX, MOMENT, ROW_END, encode_rows
from effects_reports.formats.fragments import Fragment, read_frames

ROWS_MAX = 1_048_575  # of a sheet, under the header; those beyond stand in a further sheet
COLUMNS_MAX = 16_384
SHEET_BYTES_MAX = ENTRY_BYTES_MAX - 2**20
_SHEET = "Report"
_WIDTHS = {DAY: 11.0, MOMENT: 19.0}  # so that a cell does not show ##### in place of its day
_SAMPLE_ROWS = 1000

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
    columns_max: int | None = COLUMNS_MAX
    by_copy = False
    typed = False
    packing: Packing = "sheet"
    encode = staticmethod(encode_rows)

    def assemble(self, columns: Sequence[Column], parts: Iterable[Part], out: Writer) -> None:
        """As `Format.assemble`.

        Raises:
            ReportRefused: there are more columns than a sheet holds.
        """
        if len(columns) > COLUMNS_MAX:
            raise ReportRefused(f"XLSX holds {COLUMNS_MAX:,} columns, not {len(columns):,}", code="xlsx_too_wide")
        archive = Archive(out)
        for name, xml in _BEFORE.items():
            archive.add(name, xml.encode())
        sheets = _Sheets(archive, columns)
        sheets.fill(chain.from_iterable(map(read_frames, parts)))
        for name, xml in _after(sheets.count).items():
            archive.add(name, xml.encode())
        archive.end()


class _Sheets:
    """The sheets of a workbook, each begun when the one before it is full.

    Attributes:
        count: how many there are.
    """

    def __init__(self, archive: Archive, columns: Sequence[Column]) -> None:
        self._archive, self._columns = archive, columns
        self._opening = b""
        self._rows = self.count = 0

    def fill(self, frames: Frames) -> None:
        for fragment, pieces in frames:
            if not self.count:
                start = b"".join(pieces)  # about 256 KiB or one row
                self._open(_widths(start, len(self._columns)))
                pieces = iter([start])  # noqa: PLW2901 - the same bytes
            elif self._rows + fragment.rows > ROWS_MAX or self._archive.plain + fragment.plain > SHEET_BYTES_MAX:
                self._close()
                self._begin()
            for piece in pieces:
                self._archive.deflated(piece)
            self._archive.count(fragment.plain, fragment.crc)
            self._rows += fragment.rows
        if not self.count:
            self._open({})
        self._close()

    def _open(self, widths: dict[int, float]) -> None:
        header = encode_rows(self._columns, [[column.header] for column in self._columns], style=BOLD)
        self._opening = f"{_opening(widths)}<sheetData>".encode() + header
        self._begin()

    def _begin(self) -> None:
        self.count += 1
        self._rows = 0
        self._archive.begin(f"xl/worksheets/sheet{self.count}.xml")
        self._archive.fragment(self._opening)

    def _close(self) -> None:
        self._archive.fragment(b"</sheetData></worksheet>")
        self._archive.close()


def _widths(packed: bytes, columns: int) -> dict[int, float]:
    """Column → width, where the first rows have days or moments. A later one shrinks until it fits (its style)."""
    try:
        rows = zlib.decompressobj(-15).decompress(packed).split(ROW_END, _SAMPLE_ROWS)[:_SAMPLE_ROWS]
    except zlib.error:  # a broken part, which is found at its end
        return {}
    widths: dict[int, float] = {}
    for row in rows:
        for number, cell in enumerate(row.split(b"<c")[1 : columns + 1]):
            for style, width in _WIDTHS.items():
                if cell.startswith(b' s="%d"' % style):
                    widths[number] = max(width, widths.get(number, 0.0))
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


def _styles() -> str:
    """In the order of the numbers that `cells` has for them."""
    shapes = ["yyyy-mm-dd", "yyyy-mm-dd hh:mm:ss", "hh:mm:ss", "0"]
    shapes += [f"0.{'0' * digits}" for digits in range(1, DECIMALS_MAX + 1)]
    formats = "".join(f'<numFmt numFmtId="{164 + n}" formatCode="{shape}"/>' for n, shape in enumerate(shapes))
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


_BEFORE = {
    "_rels/.rels": _relationships({"xl/workbook.xml": f"{_OFFICE}/officeDocument"}),
    "xl/styles.xml": _styles(),
}


def _after(sheets: int) -> dict[str, str]:
    numbers = range(1, sheets + 1)
    names = [_SHEET if number == 1 else f"{_SHEET} {number}" for number in numbers]
    listed = "".join(
        f'<sheet name="{name}" sheetId="{number}" r:id="rId{number}"/>'
        for number, name in zip(numbers, names, strict=True)
    )
    targets = {f"worksheets/sheet{number}.xml": f"{_OFFICE}/worksheet" for number in numbers}
    overrides = {"xl/workbook.xml": "sheet.main", "xl/styles.xml": "styles"}
    overrides |= {f"xl/{target}": "worksheet" for target in targets}
    types = "".join(
        f'<Override PartName="/{name}" ContentType="{_TYPES}.{kind}+xml"/>' for name, kind in overrides.items()
    )
    return {
        "xl/workbook.xml": f'{_XML}<workbook xmlns="{_MAIN}" xmlns:r="{_OFFICE}"><sheets>{listed}</sheets></workbook>',
        "xl/_rels/workbook.xml.rels": _relationships({**targets, "styles.xml": f"{_OFFICE}/styles"}),
        "[Content_Types].xml": (
            f'{_XML}<Types xmlns="{_PACKAGE}/content-types">'
            f'<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
            f'<Default Extension="xml" ContentType="application/xml"/>{types}</Types>'
        ),
    }
