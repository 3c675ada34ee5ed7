"""A Django project with the dashboard at `/ops/`, visited by Django's own client; prints what it saw as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

import django
from django.conf import settings
from django.test import Client
from django.urls import include, path

from effects import Effects
from effects.web import PageRequest, Person, dashboard
from tests.support.scripted import Scripted

settings.configure(
    ROOT_URLCONF=__name__, SECRET_KEY="x", ALLOWED_HOSTS=["*"],
    MIDDLEWARE=["django.middleware.csrf.CsrfViewMiddleware", "django.middleware.clickjacking.XFrameOptionsMiddleware"],
)  # fmt: skip
django.setup()
app = Effects(sys.argv[1], job_types=[Scripted(), Scripted("held", on_unknown="hold")])


def guard(request: PageRequest) -> Person | None:
    name = request.host.headers.get("X-User")
    return Person(name, role="operator") if name else None


board = dashboard(guard=guard, effects=app)
urlpatterns: list[Any] = [path("ops/", include(board.django_urls))]


def main(job_id: str) -> dict[str, object]:
    client = Client(enforce_csrf_checks=True, headers={"sec-fetch-site": "same-origin"})
    ann = {"X-User": "ann"}
    stranger = client.get("/ops/")
    overview = client.get("/ops/", headers=ann)
    form = f"/ops/jobs/{job_id}/ignore"
    token = client.get(form, headers=ann).content.decode().partition('name="form_token" value="')[2][:64]
    body = f"form_token={token}&reason=x"
    kind = "application/x-www-form-urlencoded"
    ignored = client.post(form, body, content_type=kind, headers=ann)
    again = client.post(form, body, content_type=kind, headers=ann)
    return {
        "stranger": stranger.status_code, "overview": overview.status_code,
        "link": 'href="/ops/needs"' in overview.content.decode(),
        "ignored": [ignored.status_code, ignored["location"]], "again": again.status_code,
        "frames": overview["x-frame-options"],
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[2])))
    board.close()
    app.dispose()
