"""Workbooks of many parts, and texts that readers get wrong."""

from __future__ import annotations

import io
import zipfile
from typing import Any
from xml.etree import ElementTree

from effects_reports import Workbook
from effects_reports.formats.base import ChunkSource, Column
from effects_reports.formats.xlsx import Xlsx
from effects_reports.readers import write_chunk
from tests.formats.rows import Memory

NAMES = ("id", "share", "price", "day", "moment", "note")
EURO = '#,##0.00 "€" & <x>'
NASTY = [
    "", " leading", "trailing ", "a\nb", "tab\there", "=1+1", "<c/>", "</row>", "]]>", "&amp;", "_x0041_", "_x005F_",
    "é😀", "\u2028", '"quoted"', "1/2", "007", "+49 30", "-5", "true",
]  # fmt: skip


def workbook(rows: list[Any], options: Workbook, facts: dict[str, str] | None = None, size: int = 3) -> bytes:
    """A file of one part for every `size` rows."""
    file = Xlsx(options, facts or {})
    columns = file.with_looks([Column(name, name.title()) for name in NAMES[: len(rows[0])]])
    parts = []
    for start in range(0, len(rows), size):
        part = Memory()
        write_chunk(ChunkSource(columns, rows=rows[start : start + size]), file, None, part, progress=lambda *_: None)
        parts.append([bytes(part.data)])
    out = Memory()
    Xlsx(options, facts or {}).assemble(columns, parts, out)
    with zipfile.ZipFile(io.BytesIO(bytes(out.data))) as archive:
        for name in archive.namelist():
            ElementTree.fromstring(archive.read(name))
    return bytes(out.data)
