"""Run all mistakes on SQLite, each message with its milliseconds; `--write` writes the document."""

from __future__ import annotations

import faulthandler
import os
import sys
import tempfile
from pathlib import Path

from tests.mistakes.table import DOCUMENT, MISTAKES, Answered, answered, document_of

HANGS_SECONDS = 30


def main() -> None:
    answers: dict[str, Answered] = {}
    for mistake in MISTAKES:
        faulthandler.dump_traceback_later(HANGS_SECONDS, exit=True)
        with tempfile.TemporaryDirectory() as name:
            os.chdir(name)
            answer = answers[mistake.name] = answered(mistake, Path(name), f"sqlite:///{name}/shop.db")
            os.chdir(DOCUMENT.parent)
        print(f"{answer.milliseconds:6.0f} ms  {mistake.name}: {' '.join(answer.message.split())}")
        assert mistake.cure in answer.message, f"the cure {mistake.cure!r} is not named"
    faulthandler.cancel_dump_traceback_later()
    slowest = max(answers.values(), key=lambda answer: answer.milliseconds)
    print(f"{len(answers)} mistakes; the slowest took {slowest.milliseconds:.0f} ms: {slowest.mistake.name}")
    if "--write" in sys.argv:
        DOCUMENT.write_text(document_of(answers), encoding="utf-8")


if __name__ == "__main__":
    main()
