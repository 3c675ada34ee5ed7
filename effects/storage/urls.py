"""The address of a storage: what EFFECTS_STORAGE_URL may say."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import msgspec

from effects.errors import ConfigurationError
from effects.storage.errors import StorageRefused
from effects.storage.names import check_name

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
