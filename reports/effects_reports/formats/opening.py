"""From a format's name to the format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from effects_reports.errors import ReportInvalid
from effects_reports.formats.arrow import Arrow, check_installed, check_writer, writer_of
from effects_reports.formats.base import DIALECTS, BigIntegers, Dialect, Format, Packing
from effects_reports.formats.csv import Csv
from effects_reports.formats.ndjson import Ndjson
from effects_reports.formats.packing import check_packing, quickest_gzip
from effects_reports.formats.parquet import Parquet
from effects_reports.formats.xlsx import Xlsx

_PACKINGS: Mapping[str, tuple[Packing, ...]] = {"": ("",), ".gz": ("gz", "isal"), ".zst": ("zst",)}
_PACKED: Mapping[str, Callable[[Dialect, Packing, BigIntegers], Format]] = {
    "csv": lambda dialect, packing, _: Csv(dialect, packing),
    "ndjson": lambda _, packing, big_integers: Ndjson(packing, big_integers),
}
_TYPED: Mapping[str, Callable[[], Format]] = {"parquet": Parquet, "arrow": Arrow}
FORMATS = (*(f"{name}{suffix}" for name in _PACKED for suffix in _PACKINGS), "xlsx", *_TYPED)
ENCRYPTED = ".zip"  # behind the name of a format: a ZIP with a password
ENCRYPTED_FORMATS = tuple(f"{name}{ENCRYPTED}" for name in (*_PACKED, "xlsx", *_TYPED))


def is_encrypted(name: str) -> bool:
    return name.endswith(ENCRYPTED)


def plain_format(name: str) -> str:
    """The format of the file in the archive; of any other name, the same."""
    return name.removesuffix(ENCRYPTED) if name in ENCRYPTED_FORMATS else name


def quickest_packing(name: str) -> Any:
    """How a file of this format is best written here, for the plan to freeze; None where its format alone decides.

    Raises:
        ConfigurationError: it needs an extra that is not installed; names it.
    """
    name = plain_format(name)
    if name in _TYPED:
        return writer_of(name)
    return quickest_gzip() if name.endswith(".gz") else None


def open_format(
    name: str, dialect: Dialect = "excel", packing: Any = None, big_integers: BigIntegers = "number"
) -> Format:
    """The format of this name, one of FORMATS; of an encrypted one, that of the file in the archive.

    Args:
        dialect: of CSV; the others have none.
        packing: what the run's plan froze; None where it froze none: zlib for gzip, any pyarrow.
        big_integers: of NDJSON, as `Ndjson` takes it.

    Raises:
        ReportInvalid: there is no such format or dialect, or it is not packed so.
        ConfigurationError: it needs an extra that is not installed, or another version of it; names it.
    """
    name = plain_format(name)
    if name not in FORMATS:
        raise ReportInvalid(f"there is no format {name!r}; give one of {', '.join(FORMATS)}")
    if dialect not in DIALECTS:
        raise ReportInvalid(f"there is no dialect {dialect!r}; give {', '.join(DIALECTS)}")
    if name == "xlsx":
        return Xlsx()
    if name in _TYPED:
        check_installed()
        if packing is not None:
            check_writer(name, packing)
        return _TYPED[name]()
    family, dot, suffix = name.partition(".")
    packings = _PACKINGS[dot + suffix]
    chosen = packings[0] if packing is None else packing
    if chosen not in packings:
        raise ReportInvalid(f"{name} is not packed as {packing!r}, which its plan froze: a newer release planned it")
    check_packing(chosen)
    return _PACKED[family](dialect, chosen, big_integers)
