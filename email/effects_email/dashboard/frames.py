"""A message's HTML in a frame that can do nothing: no script, no form, nothing fetched, no cookie of ours."""

from __future__ import annotations

import re

from effects.web import PageAnswer

_CSP = "sandbox; default-src 'none'; img-src data:; style-src 'unsafe-inline'; frame-ancestors 'self'"
_REMOTE = re.compile(r"(?:src|background|href)\s*=\s*[\"']?https?://([^/\"'\s>?#]{1,253})", re.IGNORECASE)
_HOSTS_MAX = 10


def framed(html: str) -> PageAnswer:
    """The HTML as it is, behind a policy of its own."""
    headers = (
        ("content-security-policy", _CSP), ("x-frame-options", "SAMEORIGIN"), ("cache-control", "no-store"),
        ("referrer-policy", "no-referrer"),
    )  # fmt: skip
    return PageAnswer(200, html.encode("utf-8", errors="replace"), headers=headers)


def remote_hosts(html: str | None) -> list[str]:
    """The hosts that the HTML links to or would load from, in its order."""
    return list(dict.fromkeys(match[1].lower() for match in _REMOTE.finditer(html or "")))[:_HOSTS_MAX]
