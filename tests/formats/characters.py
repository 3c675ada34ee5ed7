"""Characters that begin a formula, that begin a cell, and that hide what stands behind them."""

from __future__ import annotations

import sys
import unicodedata
from typing import Literal

FORMS: tuple[Literal["NFC", "NFD", "NFKC", "NFKD"], ...] = ("NFC", "NFD", "NFKC", "NFKD")


def _normal_forms(char: str) -> set[str]:
    return {char, *(unicodedata.normalize(form, char) for form in FORMS)}


def _becoming(first: str) -> list[str]:
    """What is one of these characters, or begins with one in a normal form; Hangul, without a mapping, never does."""
    changing = [char for char in EVERY_CHAR if char in first or unicodedata.decomposition(char)]
    return [char for char in changing if any(form[0] in first for form in _normal_forms(char))]


EVERY_CHAR = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
SIGNS = _becoming("=+-@\u2212")
BREAKS = _becoming(";|\t") + [line[-1] for line in "".join(EVERY_CHAR).splitlines(keepends=True)[:-1]]
# No picture of their own, though letters or marks by their category: joiners, fillers, variation selectors, a blank.
IGNORABLE = "\u034f\u115f\u1160\u17b4\u180b\u2065\u2800\u3164\ufe00\ufe0f\uffa0\ufff0\U000e0100\U000e0fff"
INVISIBLE = ["", '"', *IGNORABLE]
INVISIBLE += [char for char in EVERY_CHAR if unicodedata.category(char) in ("Cc", "Cf", "Zs", "Zl", "Zp")]
