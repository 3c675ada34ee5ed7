"""Names: of the objects in a storage, and of the storage itself (EFFECTS_STORAGE_URL)."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

import msgspec

from effects.errors import ConfigurationError
from effects.kit.files.base import StorageRefused
from effects.kit.text.unsafe import is_printable, without_unsafe

NAME_BYTES_MAX = 900  # object storage allows 1,024, and a prefix comes before it
PART_BYTES_MAX = 200  # a file name has 255, and an unfinished one is longer by its ending
UNFINISHED = ".unfinished"  # the ending of a file in the making
_IN_THE_MAKING = re.compile(rf"(.+?)(\.[0-9a-f]{{16}})?{re.escape(UNFINISHED)}", re.DOTALL)  # of the object to be
_UNSAFE = re.compile(r"[^A-Za-z0-9 ._()+=,@!~^-]|^\.+")
_PATH = re.compile(r"[/\\]")


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


def attachment(filename: str) -> str:
    """`attachment; filename="…"`, plus the exact name if it is not ASCII.

    Slashes, control characters and direction marks become `_`; at most 200 characters are kept.
    """
    name = _PATH.sub("_", without_unsafe(filename, "_"))[:200] or "download"
    plain = _UNSAFE.sub("_", name)
    if plain == name:
        return f'attachment; filename="{plain}"'
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"


_FORMS = "give a folder (files, file:files, file:///srv/files) or s3://bucket/prefix?region=…&endpoint=https://…"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


class Folder(msgspec.Struct, frozen=True):
    """A storage in a folder."""

    path: Path


class Bucket(msgspec.Struct, frozen=True):
    """A storage in a bucket, below `prefix`. `region` and `endpoint` are None if the environment sets them."""

    name: str
    prefix: str = ""
    region: str | None = None
    endpoint: str | None = None


def check_url(url: str) -> Folder | Bucket:
    """What the URL names.

    Raises:
        ConfigurationError: as `open_storage`.
    """
    scheme, colon, _ = url.partition(":")
    if not colon or "/" in scheme:
        return _folder(url)
    parts = _split(url)
    if scheme == "file":
        if parts.netloc not in ("", "localhost") or parts.query or parts.fragment:
            raise _wrong("it has a host, a query or a fragment")
        return _folder(unquote(parts.path))
    if scheme != "s3":
        raise _wrong(f"it begins with {scheme[:20]!r}")
    if "@" in parts.netloc:
        raise _wrong("it holds credentials, which belong into AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if strange := sorted(options.keys() - {"region", "endpoint"}):
        raise _wrong(f"it has an option {strange[0][:20]!r}")
    if not _BUCKET.fullmatch(parts.netloc) or not all(options.values()):
        raise _wrong("its bucket, region or endpoint is not one")
    endpoint = _split(options.get("endpoint", "https://"))
    if endpoint.scheme not in ("https", "http"):
        raise _wrong("its endpoint is not an http address")
    if "@" in endpoint.netloc:
        raise _wrong("its endpoint holds credentials, which belong into AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
    return Bucket(parts.netloc, _prefix(unquote(parts.path)), options.get("region"), options.get("endpoint"))


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:
        raise _wrong("its host has brackets and is no address") from None


def _prefix(path: str) -> str:
    try:
        return check_name(path.strip("/")) if path.strip("/") else ""
    except StorageRefused as error:
        raise _wrong(str(error)) from None


def _folder(path: str) -> Folder:
    if not path or "\0" in path:
        raise _wrong("it names no folder")
    if path.startswith("~"):
        raise _wrong("it begins with ~, which is not expanded: write the folder out")
    return Folder(Path(path))


def _wrong(why: str) -> ConfigurationError:
    """Without the value, which might hold a password."""
    return ConfigurationError(f"EFFECTS_STORAGE_URL is not the address of a storage: {why}; {_FORMS}")
