"""An app with templates and a transport that the test moves; the command as `tests/cli` runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from effects import Effects
from effects.keys.encryption import generate_key
from effects.worker import Worker
from effects_email import EmailReceipt, EmailSend, send_templated_email
from effects_email.transport import url as transport_urls
from tests.cli.conftest import _logging, run
from tests.conftest import AppFactory
from tests.email.messages.post import Post

KEYS = f"k1={generate_key()},digest={generate_key()}"
FILES = {
    "_layout.html": "<html><head><style>p { color: #333 }</style></head><body>{% block content %}{% endblock %}"
    "</body></html>",
    "welcome/subject.txt": "Welcome, {{ name }}!\n",
    "welcome/body.html": '{% extends "_layout.html" %}{% block content %}<p>Hello {{ name }},\n'
    '<a href="{{ link }}">confirm</a>.</p>{% endblock %}',
    "welcome.de/subject.txt": "Willkommen, {{ name }}!",
    "welcome.de/body.txt": "Hallo {{ name }}: {{ link }}\n",
    "code/subject.txt": "Your code",
    "code/body.txt": "{{ code }}\n",
    "code/template.toml": 'on_unknown = "hold"\nexpires_seconds = 600\nsender = "Desk <desk@shop.example>"\n',
}
CONTEXT = {"name": "Ann", "link": "https://shop.example/confirm?a=1&b=2"}

MakeShop: TypeAlias = Callable[..., Effects]
__all__ = ["_logging", "run"]


def write(folder: Path, files: Mapping[str, str]) -> Path:
    for path, text in files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


@pytest.fixture
def templates(tmp_path: Path) -> Path:
    return write(tmp_path / "emails", FILES)


@pytest.fixture
def post() -> Post:
    return Post()


@pytest.fixture
def make_shop(app_factory: AppFactory, templates: Path, post: Post) -> Iterator[MakeShop]:
    """`make_shop(email_hold=True)`: an app whose mail goes to `post`."""
    transport_urls.register("post", lambda parsed: post)

    def make(**options: Any) -> Effects:
        settings = {"keys": KEYS, "templates": templates, "email_from": "Shop <hello@shop.example>"}
        return app_factory(job_types=[], **{"smtp_url": "post://there", **settings, **options})

    yield make
    transport_urls._registered.pop("post")


@pytest.fixture
def shop(make_shop: MakeShop) -> Effects:
    return make_shop()


@pytest.fixture
def send(shop: Effects) -> Callable[..., EmailReceipt]:
    """`send_templated_email`, with a template, a recipient and a context that are good."""

    def call(template: str = "welcome", **options: Any) -> EmailReceipt:
        arguments = {"to": "ann@example.com", "context": CONTEXT, "effects": shop, **options}
        return send_templated_email(template, **arguments)

    return call


def drain(app: Effects) -> dict[str, int]:
    """Let a worker do what is due; how its jobs ended."""
    return dict(Worker(app).drain(30).counts)


def job_type(app: Effects) -> EmailSend:
    registered = app.job_types.get("email.send")
    assert isinstance(registered, EmailSend)
    return registered
