"""The endpoint that a mail server posts reports to, each as it came, `message/rfc822` in the body.

    app = asgi_app(secrets=["a password of 16 characters or more"])   # https://effects:PASSWORD@shop.example/bounces/

From Postfix, by a pipe in `aliases`, which has a shell:

    bounces: "|head -c 1000000 | curl -sf --data-binary @- https://effects:PASSWORD@shop.example/bounces/ || exit 75"

Exit code 75 has the mail server keep the report and try again; after any other it would give it up. Of a report that
returns large files the beginning is enough, and more than 1 MiB is refused. Nothing but the password shows who posts,
though a report needs a proof of its own; see `effects_email.returned.proof`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from effects import Effects, StoreUnavailable
from effects.extend import app_of, web_apps
from effects_email.returned.taking import take_report
from effects_email.signature import knows_password, passwords

_METHODS = ("POST",)
_RETRY_SECONDS = 60
_log = logging.getLogger("effects.email.bounces")


class ReportReceiver:
    """Takes reports by HTTP.

    Args:
        secrets: passwords of 16 characters or more; several while one is replaced.
        effects: default the process's, when the first request comes.

    Raises:
        ConfigurationError: a password is missing or too short.
    """

    def __init__(self, *, secrets: Iterable[str] | str, effects: Effects | None = None) -> None:
        self._hashes = passwords([secrets] if isinstance(secrets, str) else secrets)
        self._effects = effects

    def answer(self, request: web_apps.Request) -> web_apps.Answer:
        """204 taken, now or before, or of no interest; 401 the password is missing or wrong; 503 the database is
        unavailable: post again.
        """
        if not knows_password(self._hashes, request.headers):
            _log.warning("email.report_refused")
            return web_apps.Answer(401, headers={"www-authenticate": 'Basic realm="reports"'})
        try:
            take_report(request.body, effects=app_of(self._effects))
        except StoreUnavailable:
            return web_apps.Answer(503, headers={"retry-after": str(_RETRY_SECONDS)})
        return web_apps.Answer(204)


def asgi_app(*, secrets: Iterable[str] | str, effects: Effects | None = None) -> web_apps.AsgiApp:
    """An ASGI app that takes reports at every path: run it, or mount it.

    Args and Raises: as `ReportReceiver`. At most 1 MiB of a body is read; more is answered 413, another method 405.
    """
    return web_apps.asgi_app(ReportReceiver(secrets=secrets, effects=effects).answer, methods=_METHODS)


def wsgi_app(*, secrets: Iterable[str] | str, effects: Effects | None = None) -> web_apps.WsgiApp:
    """The same as a WSGI app (PEP 3333)."""
    return web_apps.wsgi_app(ReportReceiver(secrets=secrets, effects=effects).answer, methods=_METHODS)
