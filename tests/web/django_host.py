"""A Django project with the dashboard at `/ops/all/`, on a socket; prints its port, and ends with its input."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import django
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.urls import include, path

from effects.web import PageRequest, Person, dashboard
from tests.peers.serving import Serving
from tests.web.full_shop import full_app

settings.configure(
    ROOT_URLCONF=__name__, SECRET_KEY="x", ALLOWED_HOSTS=["*"],
    MIDDLEWARE=["django.middleware.csrf.CsrfViewMiddleware", "django.middleware.clickjacking.XFrameOptionsMiddleware"],
)  # fmt: skip
django.setup()
app = full_app(sys.argv[1], Path(sys.argv[2]))


def guard(request: PageRequest) -> Person | None:
    """By Django's own request, as with a session of it."""
    name, _, role = request.host.headers.get("X-User", "").partition(" ")
    return Person(name, role=role, personal=True) if name else None


board = dashboard(guard=guard, effects=app)
urlpatterns: list[Any] = [path("ops/all/", include(board.django_urls))]


class Quiet(WSGIRequestHandler):
    """Says nothing of its requests."""

    def log_message(self, *words: Any) -> None:
        """Nothing."""


if __name__ == "__main__":
    with Serving(make_server("127.0.0.1", 0, get_wsgi_application(), handler_class=Quiet)) as serving:
        print(serving.port, flush=True)
        sys.stdin.read()
    board.close()
    app.dispose()
