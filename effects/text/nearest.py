"""What a mistyped name may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, names: Iterable[str]) -> str:
    """The end of an error: `; is it 'pager.page'?`, or nothing where no name is similar."""
    matches = difflib.get_close_matches(name, list(names), n=1)
    return f"; is it {matches[0]!r}?" if matches else ""
