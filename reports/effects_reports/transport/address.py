"""Where a bucket is: `s3://bucket/prefix?region=…&endpoint=https://…`, refused early where it cannot be used."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import msgspec

from effects.extend.http import Private, host_allowed, is_web_port
from effects.extend.text import is_printable
from effects_reports.errors import BucketInvalid

_OBJECT_BYTES_MAX = 1024  # S3's own limit of a key
_DEFAULT_REGION = "us-east-1"  # what stores that know no regions are signed for
_FORM = "give s3://bucket/prefix?region=…, for other stores than Amazon's with &endpoint=https://…"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_REGION = re.compile(r"[a-z0-9-]{1,40}")


class BucketAddress(msgspec.Struct, frozen=True):
    """A bucket, and below which prefix files go; `origin` has scheme, host and port."""

    bucket: str
    prefix: str
    region: str
    origin: str

    def path_of(self, name: str) -> str:
        """The path of an object's URL, quoted as it is signed. The bucket stands in it, as every store takes it."""
        return quote(f"/{self.bucket}/{self.key_of(name)}", safe="/-_.~")

    def key_of(self, name: str) -> str:
        """The object's key in the bucket."""
        return f"{self.prefix}/{name}" if self.prefix else name


def parse_address(url: str, *, allow_private: Private = False) -> BucketAddress:
    """What the URL names. Nothing is resolved, and no one is asked.

    Args:
        allow_private: networks whose addresses are open; plain http is open to addresses in them alone.

    Raises:
        BucketInvalid: what is wrong with it; never quotes it.
    """
    if not isinstance(url, str) or not is_printable(url) or " " in url:
        raise BucketInvalid(f"the bucket's URL is no text without spaces; {_FORM}")
    try:
        parts = urlsplit(url)
    except ValueError:
        raise BucketInvalid(f"the URL names no bucket; {_FORM}") from None
    if parts.scheme != "s3" or not _BUCKET.fullmatch(parts.netloc) or parts.fragment:
        raise BucketInvalid(f"the URL names no bucket; {_FORM}")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if options.keys() - {"region", "endpoint"}:
        raise BucketInvalid(f"the bucket's URL has an unknown option; {_FORM}")
    region, endpoint = options.get("region"), options.get("endpoint")
    if endpoint is None and region is None:
        raise BucketInvalid(f"the bucket's URL has no region; {_FORM}")
    if region is not None and not _REGION.fullmatch(region):
        raise BucketInvalid(f"the bucket's region does not look like one; {_FORM}")
    prefix = unquote(parts.path).strip("/")
    if prefix:
        check_object(prefix)
    origin = f"https://s3.{region}.amazonaws.com" if endpoint is None else _origin(endpoint, allow_private)
    return BucketAddress(parts.netloc, prefix, region or _DEFAULT_REGION, origin)


def check_object(name: str) -> str:
    """Refuse what is no usable name of an object.

    Raises:
        BucketInvalid: it is empty, longer than 1,024 bytes, has a character that does not print, or an empty, `.` or
            `..` step.
    """
    if not name or not is_printable(name) or len(name.encode()) > _OBJECT_BYTES_MAX:
        raise BucketInvalid("the object's name is empty, longer than 1,024 bytes, or does not print")
    if any(step in ("", ".", "..") for step in name.split("/")):
        raise BucketInvalid("the object's name begins or ends with /, or has an empty, . or .. step")
    return name


def _origin(endpoint: str, allow_private: Private) -> str:
    try:
        parts = urlsplit(endpoint)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise BucketInvalid("the bucket's endpoint is no address of the web") from None
    if parts.scheme not in ("https", "http") or not host or parts.path.strip("/") or parts.query or parts.fragment:
        raise BucketInvalid("the bucket's endpoint is no address of the web; give https://host, without a path")
    if parts.username is not None or parts.password is not None:
        raise BucketInvalid("the bucket's endpoint holds a user name or password; give credentials as such")
    if not is_web_port(port):
        raise BucketInvalid("the bucket's endpoint has a port of another service; give 443, 80, or one above 1023")
    if not host_allowed(host, allow_private=allow_private):
        raise BucketInvalid(
            "the bucket's endpoint is an address that is not allowed: loopback, private, link-local or reserved "
            "(EFFECTS_BUCKET_PRIVATE_NETWORKS allows private networks)"
        )
    if parts.scheme == "http" and host_allowed(host):
        raise BucketInvalid(
            "the endpoint must begin with https:// (http only for an address in EFFECTS_BUCKET_PRIVATE_NETWORKS)"
        )
    return f"{parts.scheme}://{parts.netloc}"
