"""What `effects --app tests.cli.dev_app:app dev` loads. It writes down what its process looks up and connects to."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from sqlalchemy import GenerativeSelect, literal_column, select, union_all

from effects import Attempt, Effects
from effects.model.schedules import Schedule
from effects_reports import report

LOOPBACK = ("localhost", "127.0.0.1", "::1", None)


@report("numbers", key=("id",), formats=("csv",))
def numbers() -> GenerativeSelect:
    """Three rows."""
    three = union_all(*(select(literal_column(str(number)).label("id")) for number in (1, 2, 3))).subquery()
    return select(three.c.id)


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook: no library of Python's can leave the machine without one of these events."""
    if event in ("socket.connect", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname"):
        place = arguments[1] if event in ("socket.connect", "socket.sendto") else arguments[0]
        if event == "socket.getaddrinfo" and place in LOOPBACK:
            return  # of the database's own host
        with Path(os.environ["DEV_APP_NOTES"]).open("a", encoding="utf-8") as file:
            file.write(f"{event} {place}\n")


if "DEV_APP_NOTES" in os.environ:
    sys.addaudithook(_note)

app = Effects(email_from="The Shop <hello@shop.example>", reports=[numbers])


@app.job("dev.tick")
def tick(attempt: Attempt) -> None:
    """What is done each day at four."""


app.add_schedules(Schedule("dev.daily", "dev.tick", cron="0 4 * * *"))
