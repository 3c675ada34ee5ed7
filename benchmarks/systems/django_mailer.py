"""django-mailer on the same messages: its own queue fills, its own `send_all` sends, over one connection kept open.

Django knows one database a process, so that filling is a process of its own as well.
"""

from __future__ import annotations

import subprocess
import sys

import django
from django.conf import settings
from django.core.management import call_command
from sqlalchemy.engine import make_url

from benchmarks.drains import System
from benchmarks.processes import await_go


def system(port: int) -> System:
    """It deletes a message in the transaction that sends it; there is no claim to see."""
    return System("django_mailer", ("send", str(port), "0"), lambda url, count: _fill(url, count, port),
                  "mailer_message", "true")  # fmt: skip


def _fill(database: str, count: int, port: int) -> None:
    command = [sys.executable, "-m", "benchmarks.systems", "django_mailer", "fill", str(port), str(count), database]
    subprocess.run(command, check=True)


def work(action: str, port: str, count: str, database: str) -> None:
    _configure(database, int(port))
    if action == "fill":
        _write(int(count))
        return
    from mailer.engine import send_all  # noqa: PLC0415 - only when Django is configured

    await_go()
    send_all()


def _configure(database: str, port: int) -> None:
    url = make_url(database)
    host = url.host or url.query.get("host", "")
    settings.configure(
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.postgresql", "NAME": url.database, "USER": url.username or "",
                "PASSWORD": url.password or "", "HOST": str(host), "PORT": str(url.port or ""), "CONN_MAX_AGE": None,
            }
        },
        INSTALLED_APPS=["mailer"],
        DEFAULT_AUTO_FIELD="django.db.models.AutoField",
        EMAIL_HOST="127.0.0.1",
        EMAIL_PORT=port,
        EMAIL_BACKEND="mailer.backend.DbBackend",
        MAILER_USE_FILE_LOCK=False,
        USE_TZ=True,
    )  # fmt: skip
    django.setup()


def _write(count: int) -> None:
    """Rendered beforehand, as ours are."""
    from django.db import transaction  # noqa: PLC0415 - only when Django is configured
    from mailer import send_html_mail  # noqa: PLC0415

    from benchmarks.systems.bare_mail import Writer  # noqa: PLC0415 - the sender needs none of it
    from benchmarks.systems.mail import SENDER, recipient  # noqa: PLC0415

    call_command("migrate", verbosity=0)
    writer = Writer()
    with transaction.atomic():
        for number in range(count):
            parts = writer.render(number)
            send_html_mail(
                parts["subject.txt"].strip(), parts["body.txt"], parts["body.html"], SENDER, [recipient(number)]
            )
