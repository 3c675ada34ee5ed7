"""Ids of rows: a prefix for their kind, and 26 characters that sort by creation time."""

from __future__ import annotations

import os
import time

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's base 32, as a ULID has it
_LENGTH = 26


def new_id(prefix: str) -> str:
    """`msg_01JD…`: 48 bits of milliseconds, 80 random ones. The order is a convenience; nothing relies on it."""
    number = (time.time_ns() // 1_000_000) << 80 | int.from_bytes(os.urandom(10), "big")
    digits = [_ALPHABET[number >> shift & 31] for shift in range(5 * (_LENGTH - 1), -1, -5)]
    return f"{prefix}_{''.join(digits)}"
