"""From a format's name to the format."""

from __future__ import annotations

from typing import cast

from effects_reports.errors import ReportInvalid
from effects_reports.formats.base import DIALECTS, Dialect, Format, Packing
from effects_reports.formats.csv import Csv
from effects_reports.formats.ndjson import Ndjson
from effects_reports.formats.packing import check_packing
from effects_reports.formats.xlsx import Xlsx, check_xlsx


def open_format(name: str, dialect: Dialect = "excel") -> Format:
    """The format of this name: `csv`, `ndjson`, each also with `.gz` or `.zst`, or `xlsx`.

    Args:
        dialect: of CSV; the others have none.

    Raises:
        ReportInvalid: there is no such format or dialect.
        ConfigurationError: it needs an extra that is not installed; names it.
    """
    family, _, packing = name.partition(".")
    if family not in ("csv", "ndjson", "xlsx") or packing not in ("", "gz", "zst") or (family == "xlsx" and packing):
        raise ReportInvalid(f"there is no format {name!r}; give csv, ndjson, each also with .gz or .zst, or xlsx")
    if dialect not in DIALECTS:
        raise ReportInvalid(f"there is no dialect {dialect!r}; give {', '.join(DIALECTS)}")
    if family == "xlsx":
        check_xlsx()
        return Xlsx()
    check_packing(cast(Packing, packing))
    return Csv(dialect, cast(Packing, packing)) if family == "csv" else Ndjson(cast(Packing, packing))
