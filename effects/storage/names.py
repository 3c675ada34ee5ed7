"""What an object may be called, so that a name means one object on every storage and never leaves its folder."""

from __future__ import annotations

import re

from effects.storage.errors import StorageRefused
from effects.text.unsafe import is_printable

NAME_BYTES_MAX = 900  # object storage allows 1,024, and a prefix comes before it
PART_BYTES_MAX = 200  # a file name has 255, and an unfinished one is longer by its ending
UNFINISHED = ".unfinished"  # the ending of a file in the making
_IN_THE_MAKING = re.compile(rf"(.+?)(\.[0-9a-f]{{16}})?{re.escape(UNFINISHED)}", re.DOTALL)  # of the object to be


def check_name(name: str) -> str:
    """The name, if it is one.

    Raises:
        StorageRefused: it is empty or too long (900 bytes; 200 between two slashes), begins or ends with `/`, has a
            part `.` or `..`, a backslash or a control character, or ends as an unfinished file does.
    """
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts):
        raise _refused(name, "each part between slashes must have a name, and not . or ..")
    if "\\" in name or not is_printable(name):
        raise _refused(name, "no backslash and no control character")
    if len(name.encode()) > NAME_BYTES_MAX or any(len(part.encode()) > PART_BYTES_MAX for part in parts):
        raise _refused(name, f"at most {NAME_BYTES_MAX} bytes, and {PART_BYTES_MAX} between two slashes")
    if name.endswith(UNFINISHED):
        raise _refused(name, f"{UNFINISHED} is the ending of files in the making")
    return name


def check_listed(name: str) -> str:
    """The name of an object, or of a file in the making: a name with a random part behind it, and their ending.

    Raises:
        StorageRefused: as `check_name`, of the object's name.
    """
    making = _IN_THE_MAKING.fullmatch(name)
    check_name(making[1] if making else name)
    return name


def is_listed(name: str) -> bool:
    """Whether `check_listed` takes it: what bears another name was not written by a storage."""
    try:
        check_listed(name)
    except StorageRefused:
        return False
    return True


def check_prefix(prefix: str) -> str:
    """The beginning of names, if it is one; the empty text begins all.

    Raises:
        StorageRefused: no name could begin so.
    """
    if prefix:
        check_name(prefix.removesuffix("/"))
    return prefix


def _refused(name: str, rule: str) -> StorageRefused:
    return StorageRefused(f"{name[:80]!r} cannot be the name of a file in the storage: {rule}", code="storage_name")
