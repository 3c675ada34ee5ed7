"""What `effects --app tests.support.backlog_app:app` loads: a report that asks at a server before each of its rows."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Column, Integer, MetaData, Row, Table

from effects import Effects
from effects_reports import report
from tests.support.step_jobs import ask

PORT = "DESK_PORT"  # the variable that names the stub server's

metadata = MetaData()
flights = Table("flights", metadata, Column("id", Integer, primary_key=True))


def asked_for(row: Row[Any]) -> Sequence[Any]:
    ask(int(os.environ[PORT]), "row")
    return (row.id,)


@report("flights", key=("id",), chunk_rows=1, parallel=1000, columns=("id",), map_row=asked_for, formats=("csv",))
def flights_report(params: dict[str, Any]) -> sa.Select[Any]:
    return sa.select(flights)


def backlog_app(url: str | None = None, **options: Any) -> Effects:
    return Effects(url, reports=[flights_report], **options)


app = backlog_app()
