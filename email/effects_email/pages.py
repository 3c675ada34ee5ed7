"""The pages of the unsubscribe endpoint: no script, nothing fetched, the same without any app around them."""

from __future__ import annotations

import html
from typing import Literal, TypeAlias

State: TypeAlias = Literal["ask", "done", "invalid", "away"]

HEADERS = {
    "content-type": "text/html; charset=utf-8",
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'",
    "referrer-policy": "no-referrer",  # the token stands in the address
    "x-content-type-options": "nosniff",
    "x-robots-tag": "noindex",
}

_TEXTS: dict[State, tuple[str, str]] = {
    "ask": ("Unsubscribe?", "You will get no more messages of the kind “{category}”."),
    "done": ("Unsubscribed", "You will get no more messages of the kind “{category}”."),
    "invalid": (
        "This link does not work",
        "It is not complete, or was altered. Try the one in the message once more.",
    ),
    "away": ("Not possible just now", "Please try again in a minute."),
}
_BUTTON = """
<form method="post"><input type="hidden" name="List-Unsubscribe" value="One-Click">
<button type="submit">Unsubscribe</button></form>"""


def page(state: State, category: str) -> str:
    """The HTML of one page; `category` is empty where it is not known."""
    title, words = _TEXTS[state]
    said = html.escape(words.format(category=category))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 30rem; margin: 4rem auto; padding: 0 1rem }}</style>
</head><body><h1>{title}</h1><p>{said}</p>{_BUTTON if state == "ask" else ""}
</body></html>
"""
