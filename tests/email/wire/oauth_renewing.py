"""A process that renews a token and gets a signal at one of its steps. It imports little: a matrix starts thousands."""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import sqlalchemy as sa

from effects import Effects
from effects.kit import guarded
from effects.kit.http import exchange, messages, on_loop
from effects.store.db import store
from effects_email import oauth
from effects_email.oauth.logins import client_of
from effects_email.state import state_of
from effects_email.tables import transports as tokens_table

LOCKED = " in a transaction"
TRACED = (
    str(Path(str(oauth.__file__)).parent),
    *(str(module.__file__) for module in (tokens_table, exchange, messages, on_loop, guarded, store)),
)


def renew(url: str, keys: str, shift: float, steps_file: str, at: int, number: int) -> None:
    """Renew the token in this process, and get this signal at the step of this number; write the steps that it passes.

    A step is the first time at a line of Python, or a statement or commit of SQL.
    """
    app = Effects(os.environ["EFFECTS_DATABASE_URL"], job_types=[], keys=keys, smtp_url=url)
    app.store.shift_clock(shift)
    client = client_of(app, "default")
    steps: dict[str, None] = {}
    transaction: list[str] = []

    def step(name: str) -> None:
        name += LOCKED if "begin" in transaction else ""
        if name in steps:
            return
        steps[name] = None
        if len(steps) == at:
            Path(steps_file).write_text(name)
            os.kill(os.getpid(), number)

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(TRACED):
            return None
        if event == "line":
            step(f"{frame.f_code.co_filename}:{frame.f_lineno}")
        return trace

    counter = itertools.count()

    def on_sql(name: str) -> None:
        if name == "begin":
            transaction.append(name)
        step(f"{name} {next(counter)}")
        if name in ("commit", "rollback"):
            transaction.clear()

    for name in ("begin", "before_cursor_execute", "after_cursor_execute", "commit", "rollback"):
        sa.event.listen(app.engine, name, lambda *_, name=name: on_sql(name))
    sys.settrace(trace)
    try:
        state_of(app).keeper.bearer("default", client, seconds=5)
    finally:
        sys.settrace(None)
    if at == 0:
        Path(steps_file).write_text("\n".join(steps))
    elif len(steps) < at:  # it did not have to wait at a socket where the first one had to
        at = len(steps) + 1
        step("the end")
