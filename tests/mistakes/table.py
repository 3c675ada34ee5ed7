"""The table of all mistakes: run, and written as `docs/mistakes.md`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from effects.errors import EffectsError
from tests.mistakes import calling, commanding, declaring, packages
from tests.mistakes.shop import Mistake, Shop, plain

DOCUMENT = Path(__file__).parents[2] / "docs" / "mistakes.md"
CHAPTERS: Mapping[str, Sequence[Mistake]] = {
    "Declaring an app": declaring.MISTAKES,
    "Calling, and handlers": calling.MISTAKES,
    "The command line": commanding.MISTAKES,
    "E-mail, webhooks, reports": packages.MISTAKES,
}
MISTAKES = [mistake for mistakes in CHAPTERS.values() for mistake in mistakes]
HEAD = """# Mistakes and their answers

`python -m tests.mistakes --write` makes every mistake, prints how many milliseconds each answer took, and writes this
page; the tests compare it. `TIME`, `N`, `WORKER`, `PORT` and `/srv/shop` replace what differs from run to run.
"""


@dataclass(frozen=True)
class Answered:
    """What a mistake was answered, and after how long."""

    mistake: Mistake
    message: str
    milliseconds: float

    @property
    def row(self) -> str:
        """Its line of the document."""
        text = " ".join(self.message.split()).replace("|", "\\|").replace("<", "&lt;")
        return f"| {self.mistake.name} | {text} |\n"


def answered(mistake: Mistake, folder: Path, database_url: str) -> Answered:
    """Make it, in this empty folder, which is the working directory.

    Raises:
        AssertionError: it was not answered at all.
        Exception: it was answered by an exception of another package.
    """
    shop = Shop(folder, database_url)
    began = time.perf_counter()
    try:
        result = mistake.make(shop)
    except EffectsError as error:
        result = f"{type(error).__name__}: {error}"
    finally:
        shop.close()
    assert isinstance(result, str), f"{mistake.name}: no answer"
    return Answered(mistake, plain(result, shop), (time.perf_counter() - began) * 1000)


def document_of(answers: Mapping[str, Answered]) -> str:
    """The page, of the answers by the mistakes' names."""
    parts = [HEAD]
    for chapter, mistakes in CHAPTERS.items():
        rows = "".join(answers[mistake.name].row for mistake in mistakes)
        parts.append(f"## {chapter}\n\n| mistake | answer |\n|---|---|\n{rows}")
    return "\n".join(parts)
