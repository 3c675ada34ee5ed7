"""`web_apps`: adapters from a request handler to ASGI and WSGI, for what providers and partners call."""

from __future__ import annotations

from effects.kit import lazy

with lazy.names(__name__):
    from effects.kit import web_apps as web_apps
