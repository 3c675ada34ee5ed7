"""Each mistake is answered in words that name its cure, as `docs/mistakes.md` lists them.

python -m tests.mistakes            run them all on SQLite: each message with its milliseconds
python -m tests.mistakes --write    and write `docs/mistakes.md`
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mistakes.table import DOCUMENT, MISTAKES, answered

SAMPLED = [mistake.name for mistake in MISTAKES[::12]]
# Words that differ between the databases, or hold what a server says.
SQLITE_ONLY = ("writes to a database that is read-only", "gives a session of another database",
               "gives a session without an engine", "calls before `effects init`",
               "names neither of two Effects", "forgets `session=` and `effects=`")  # fmt: skip


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "name", [pytest.param(each.name, marks=() if each.name in SAMPLED else pytest.mark.slow) for each in MISTAKES]
)
def test_the_error_names_the_remedy(
    name: str, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "shop"
    folder.mkdir()
    monkeypatch.chdir(folder)
    [mistake] = [mistake for mistake in MISTAKES if mistake.name == name]
    answer = answered(mistake, folder, database_url)
    assert mistake.cure in answer.message
    assert "Traceback" not in answer.message
    if database_url.startswith("sqlite") or name not in SQLITE_ONLY:
        assert answer.row in DOCUMENT.read_text(encoding="utf-8")


def test_the_document_lists_them_all() -> None:
    """At least sixty, each once."""
    names = [mistake.name for mistake in MISTAKES]
    assert len(names) == len(set(names)) >= 60
    text = DOCUMENT.read_text(encoding="utf-8")
    assert [name for name in names if f"\n| {name} | " not in text] == []
    assert text.count("\n| ") == len(names) + 4  # of each table its head
