"""Since when the machine runs: what was written and not synced is in its memory until it boots again."""

from __future__ import annotations

from functools import cache
from pathlib import Path

_FILE = Path("/proc/sys/kernel/random/boot_id")


@cache
def boot_id() -> str | None:
    """A text that is another after each boot of this machine, and on each machine; None where the system has none."""
    try:
        return _FILE.read_text(encoding="ascii").strip() or None
    except OSError:  # not Linux
        return None
