"""Where a text names an address. Imports nothing of ours: what reads strangers' messages starts quickly."""

from __future__ import annotations

import re


def place_in(text: str, address: str) -> int:
    """Where an address stands in a text, in any case and not as a part of another one (`ann@…` of `joann@…`); -1 where
    it does not.
    """
    match = re.search(rf"(?<![\w.+-]){re.escape(address)}(?![\w-]|\.\w)", text, re.IGNORECASE)
    return match.start() if match is not None else -1
