"""docs/backup.md is played as it stands: what a restored backup would repeat, and that its steps prevent it."""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.house.source import ROOT
from tests.support import databases
from tests.support.runbooks import with_server_tools
from tests.support.sampling import sample
from tests.support.terminal import Terminal, terminal

# Every ten minutes a job of effects.prune would take a number before one that the page shows.
PAGE = (
    (ROOT / "docs" / "backup.md")
    .read_text()
    .replace("$ effects init\n", "$ effects init\n$ effects schedules pause effects.prune\n")
)
BEFORE = PAGE.partition("## Restore\n")[0]
RESTORE = "rm effects.db*; cp backup.db effects.db"
pytestmark = pytest.mark.timeout(300)  # some forty commands, which take seconds each on a busy machine
EACH_ONCE = {f"label of order {order}": 1 for order in (1, 2, 3, 4)}


def settings() -> dict[str, str]:
    return {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{with_server_tools()['PATH']}"}


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Terminal]:
    with terminal(tmp_path, settings(), forks=True) as opened:
        yield opened


def printed(folder: Path) -> Counter[str]:
    return Counter((folder / "printer.txt").read_text().splitlines())


def finish(shell: Terminal) -> None:
    """The worker that the steps have started prints what comes next, after all that it would repeat."""
    shell.type("python shop.py 5", [])
    shell.type("effects jobs wait --key label:5", ["done"])


def enter_again(shell: Terminal) -> None:
    """What an application does that has forgotten order 4 and that 3 was cancelled."""
    for order in (3, 4):
        shell.type(f"python shop.py {order}", [])
    shell.type("effects work --drain", ["worker.stopped"])


def test_a_restored_backup_repeats_what_was_done_since(shell: Terminal, tmp_path: Path) -> None:
    shell.play(BEFORE)
    assert printed(tmp_path) == EACH_ONCE
    shell.type(RESTORE, [])
    shell.type("effects work --drain", ["worker.stopped"])
    assert printed(tmp_path) == EACH_ONCE | {"label of order 3": 2}
    enter_again(shell)
    assert printed(tmp_path) == EACH_ONCE | {"label of order 3": 2, "label of order 4": 2}
    shell.type("effects audit", ["clean"])
    shell.type("effects failovers list", ["no failovers"])


@pytest.mark.parametrize("database", sample(["sqlite", "postgresql"], 1))
def test_the_steps_let_nothing_be_repeated_that_the_database_knows(
    database: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with ExitStack() as stack:
        page, variables = PAGE, settings()
        if database == "postgresql":
            server = request.getfixturevalue("postgresql_server")
            url = stack.enter_context(databases.postgresql_database(server))
            page, variables = on_postgresql(), {**variables, "EFFECTS_DATABASE_URL": url, "URL": url}
        shell = stack.enter_context(terminal(tmp_path, variables, forks=True))
        shell.play(page)
        finish(shell)
        assert printed(tmp_path) == EACH_ONCE | {"label of order 5": 1}
        enter_again(shell)
        assert printed(tmp_path) == EACH_ONCE | {"label of order 5": 1, "label of order 4": 2}


def on_postgresql() -> str:
    """The page with a dump, restored into the same database of the same cluster."""
    dump, restore = re.findall(r"`(pg_(?:dump|restore) [^`]+ URL[^`]*)`", PAGE)
    page = re.sub(r"^\$ python -c .*$", "$ " + dump, PAGE, count=1, flags=re.MULTILINE).replace(RESTORE, restore)
    return page.replace("--dbname URL", '--dbname "$URL"')
