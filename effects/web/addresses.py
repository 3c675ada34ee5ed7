"""Where the stand-alone dashboard listens, and where a person signs in."""

from __future__ import annotations

DEFAULT_PORT = 8765
LOOPBACK_ADDRESSES = ("127.0.0.1", "::1", "localhost")


def sign_in_url(base_url: str, secret: str) -> str:
    """The address of a one-time link."""
    return f"{base_url.rstrip('/')}/sign-in?token={secret}"
