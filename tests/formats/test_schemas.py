"""Every file of a workbook is valid by the schemas of ECMA-376, whatever its cells hold."""

from __future__ import annotations

import datetime as dt
import io
import os
import zipfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import openxml_audit as audit
import pytest
from lxml import etree

from effects_reports.formats import fragments as sheet_rows
from effects_reports.formats.base import Workbook
from tests.formats.books import EURO, NASTY, workbook

VALUES: list[Any] = [
    *NASTY, None, 10**18, -(10**15), 1.5e300, float("nan"), Decimal("12.50"), Decimal("1e-40"), dt.date(1899, 1, 1),
    dt.datetime(2026, 1, 1, 23, 59, 59, 999_999, dt.UTC), dt.time(5, 17), True, b"\0\xff", {"a": [1]}, "\x00\x0b",
    "x" * 40_000,
]  # fmt: skip
DRESSED = Workbook(
    sheet='A & B "x" é', formats={"share": "0.0%", "price": EURO}, widths={"note": 40}, totals=("id", "share"),
    cover='Title <&> "', zone="Europe/Berlin", long_texts="cut",
)  # fmt: skip
LOOKS = {"plain": Workbook(long_texts="cut"), "dressed": DRESSED}
_THEME = "relationships/theme"  # a workbook may have one, says ECMA-376; the SDK wants it
_SPACE = "{http://www.w3.org/XML/1998/namespace}space"


def book(look: str, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A file of several sheets."""
    monkeypatch.setattr(sheet_rows, "ROWS_MAX", 15)
    rows = [(n, n / 8, value, dt.date(2026, 1, 1), value, value) for n, value in enumerate(VALUES)]
    return workbook(rows, LOOKS[look], {"rows": "5", "<x>": "&"})


def errors(file: bytes, path: Path) -> list[str]:
    """By the schemas of the Open XML SDK, which are those of ECMA-376's first edition, in JSON."""
    path.write_bytes(file)
    result = audit.OpenXmlValidator(file_format=audit.FileFormat.OFFICE_2007).validate(str(path))
    broken = [error for error in result.errors if error.severity is audit.ValidationSeverity.ERROR]
    shown = [f"{error.error_type.value} {error.part_uri}: {error.description}" for error in broken]
    return [line for line in shown if _THEME not in line]


@pytest.mark.parametrize("look", LOOKS)
def test_a_workbook_is_valid(look: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert errors(book(look, monkeypatch), tmp_path / "book.xlsx") == []


@pytest.mark.parametrize(
    ("old", "new"), [(b"<sheetData>", b"<sheetData><x/>"), (b'<c s="1" t="inlineStr"', b'<c s="1" t="text"')]
)
def test_what_is_not_valid_is_seen(old: bytes, new: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(book("plain", monkeypatch))) as source, zipfile.ZipFile(broken, "w") as target:
        for name in source.namelist():
            target.writestr(name, source.read(name).replace(old, new))
    assert errors(broken.getvalue(), tmp_path / "broken.xlsx") != []


@pytest.mark.parametrize("look", LOOKS)
def test_a_workbook_is_valid_by_the_schemas_themselves(look: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On demand: EFFECTS_TEST_OOXML_SCHEMAS is a folder with the transitional schemas and those of packages.

    They have no `xml:space` at a text, which Excel itself writes there, and without which it would strip spaces.
    """
    if not (folder := os.environ.get("EFFECTS_TEST_OOXML_SCHEMAS")):
        pytest.skip("on demand: EFFECTS_TEST_OOXML_SCHEMAS=DIR, unpacked from the downloads of ECMA-376")
    with zipfile.ZipFile(io.BytesIO(book(look, monkeypatch))) as archive:
        for name in archive.namelist():
            document = etree.fromstring(archive.read(name))
            for text in document.iter("{*}t"):
                text.attrib.pop(_SPACE, None)
            _schema(Path(folder), name).assertValid(document)


def _schema(folder: Path, name: str) -> Any:
    kinds = {"[Content_Types].xml": "opc-contentTypes.xsd"}
    schema_file = kinds.get(name, "opc-relationships.xsd" if name.endswith(".rels") else "sml.xsd")
    return etree.XMLSchema(etree.parse(next(folder.rglob(schema_file)), _parser(folder)))


def _parser(folder: Path) -> Any:
    """The schemas import that of XML itself, from the web or beside them."""

    class Beside(etree.Resolver):  # type: ignore[name-defined,misc]
        def resolve(self, url: str, _: str, context: Any) -> Any:
            near = next(folder.rglob("xml.xsd"), None) if url.endswith("xml.xsd") else None
            return None if near is None else self.resolve_filename(str(near), context)

    parser = etree.XMLParser()
    parser.resolvers.add(Beside())
    return parser
