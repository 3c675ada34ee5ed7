"""Answers to pages that refresh themselves: nothing is sent again that the browser shows already."""

from __future__ import annotations

import datetime as dt
import hashlib
import re
from dataclasses import replace

from effects.text.wording import moment_text
from effects.web.exchange import PageAnswer
from effects.web.visit import Visit

READ_HEADER = "x-effects-read"
_READ_AT = re.compile(rb'<p id="read">.*?</p>', re.DOTALL)  # when it was read, which alone is no news


def polled_answer(visit: Visit, answer: PageAnswer) -> PageAnswer:
    """With the tag of what the page shows, or without a body (304) where the browser has that already.

    The header `x-effects-read` has the time of reading, for the browser and in words.
    """
    if not visit.is_polled or visit.request.is_unsafe or answer.status != 200 or not answer.body:
        return answer
    tag = f'"{hashlib.sha256(_READ_AT.sub(b"", answer.body)).hexdigest()[:24]}"'
    now = dt.datetime.now(dt.UTC)
    headers = (
        *answer.headers,
        ("etag", tag),
        (READ_HEADER, f"{now.isoformat(timespec='milliseconds')} {moment_text(now)}"),
    )
    if visit.request.headers.get("if-none-match") == tag:
        return PageAnswer(304, headers=headers)
    return replace(answer, headers=headers)
