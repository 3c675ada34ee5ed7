"""A context as the text of `trace_context`, and back."""

from __future__ import annotations

import json

from opentelemetry import propagate
from opentelemetry.context import Context

TRACEPARENT = "traceparent"
CHARS_MAX = 8192  # of baggage and the like; beyond it only `traceparent` is kept


def text_of_context(context: Context | None = None) -> str | None:
    """The headers of the configured propagators: `traceparent` by itself as it is, several as a JSON object.

    Args:
        context: default: the current one.
    """
    headers: dict[str, str] = {}
    propagate.inject(headers, context)
    parent = headers.get(TRACEPARENT)
    if headers.keys() <= {TRACEPARENT}:
        return parent
    text = json.dumps(headers, separators=(",", ":"))
    return text if len(text) <= CHARS_MAX else parent


def context_of_text(text: str | None) -> Context:
    """The context of a job's `trace_context`: empty where the text is missing or no context."""
    return propagate.extract(_headers(text), Context())


def _headers(text: str | None) -> dict[str, str]:
    if text is not None and len(text) > CHARS_MAX:  # anybody with INSERT may have written it
        return {}
    if text is None or not text.startswith("{"):
        return {} if text is None else {TRACEPARENT: text}
    try:
        headers = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return {name: value for name, value in headers.items() if isinstance(value, str)}
