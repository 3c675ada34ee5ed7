"""Waits that are clipped to what is left of one deadline.

httpx's and httpcore's own time limits are for each read and write: a peer that drips a byte now and then would hold a
worker forever.
"""

from __future__ import annotations

import httpcore

from effects.http.exchange import Exchange


def clip(exchange: Exchange, seconds: float | None, timeout: type[httpcore.TimeoutException]) -> float:
    """The smaller of `seconds` and the time left to the deadline; raises `timeout` if none is left."""
    left = exchange.remaining()
    if left <= 0:
        raise timeout("the deadline has passed")
    return left if seconds is None or left < seconds else seconds


class Unasked(httpcore.RemoteProtocolError):
    """The peer sent data before the request; no byte of the request was written."""
