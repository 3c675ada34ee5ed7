"""How a report looks as a workbook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal
from zoneinfo import ZoneInfo

from effects.extend import is_printable
from effects_reports.errors import DefinitionInvalid

NAME_CHARS_MAX = 25  # of 31: further sheets have a number behind it
FORMAT_CHARS_MAX = 255
WIDTH_MAX = 255.0
LONG_TEXTS = ("refuse", "cut")
_RESERVED = "history"  # of Excel's own sheet of changes
_FORBIDDEN_IN_NAMES = frozenset("[]:*?/\\'")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workbook:
    """How `xlsx` looks: ``@report(…, workbook=Workbook(formats={"share": "0.0%"}))``. Columns are meant by their names.

    Args:
        sheet: what the sheet is called, at most 25 characters. Default: Report.
        formats: Excel's number formats by columns, for numbers, days and moments: `#,##0.00 "€"`, `0.0%`, `dd.mm.yyyy`.
        widths: of columns, in characters. Default: wide enough for days and moments.
        totals: columns whose sum stands in a last row, as a formula that the program computes when it opens the file.
        zone: that of the reader, such as `Europe/Berlin`: moments are shown in it. Default: UTC.
        long_texts: `refuse` (default) fails a report with a text of more than 32,767 characters; `cut` ends it there by
            `…`, and says how many in the log (`report.texts_cut`) and in the chunk's job.
        cover: the title of a first sheet, with the params, the time of the plan and the number of rows. Default: none.
    """

    sheet: str = "Report"
    formats: Mapping[str, str] = field(default_factory=dict)
    widths: Mapping[str, float] = field(default_factory=dict)
    totals: Sequence[str] = ()
    zone: str | None = None
    long_texts: Literal["refuse", "cut"] = "refuse"
    cover: str | None = None

    def check(self, who: str, columns: Sequence[str] | None) -> None:
        """Refuse what no workbook can be; `columns` are the report's, where they are known.

        Raises:
            DefinitionInvalid: names the argument.
        """
        if why := next(filter(None, (self._why_name(), self._why_looks(), self._why_zone())), None):
            raise DefinitionInvalid(f"{who}: workbook: {why}")
        named = [*self.formats, *self.widths, *self.totals]
        if columns is not None and (unknown := [name for name in named if name not in columns]):
            raise DefinitionInvalid(f"{who}: workbook names the column {unknown[0]!r}, which the report does not have")

    def _why_name(self) -> str | None:
        fits = 0 < len(self.sheet) <= NAME_CHARS_MAX and is_printable(self.sheet)
        if fits and self.sheet.casefold() == _RESERVED:
            return f"sheet is {self.sheet!r}, a name that Excel keeps for itself; give another"
        if fits and _FORBIDDEN_IN_NAMES.isdisjoint(self.sheet):
            return None
        return f"sheet is {self.sheet!r}; give 1 to {NAME_CHARS_MAX} characters other than []:*?/\\'"

    def _why_looks(self) -> str | None:
        for name, code in self.formats.items():
            if not 0 < len(code) <= FORMAT_CHARS_MAX or not is_printable(code):
                return f"the format of {name!r} has 1 to {FORMAT_CHARS_MAX} printable characters"
        for name, width in self.widths.items():
            if not 0 < width <= WIDTH_MAX:
                return f"the width of {name!r} is {width:g}; give up to {WIDTH_MAX:g}"
        return None if self.long_texts in LONG_TEXTS else f"long_texts is {self.long_texts!r}; give refuse or cut"

    def _why_zone(self) -> str | None:
        try:
            ZoneInfo(self.zone or "UTC")
        except (LookupError, ValueError, OSError):
            return f"there is no zone {self.zone!r}"
        return None
