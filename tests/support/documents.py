"""The documents whose blocks are executed, and how."""

from __future__ import annotations

from pathlib import Path

from tests.house.source import ROOT

PLAYED = {  # in one shell each, by tests of their own
    Path("docs/tutorial.md"),
    Path("docs/backup.md"),
    Path("docs/retention-and-secrets.md"),
}
DOCUMENTS = sorted(
    {
        path.relative_to(ROOT)
        for path in [*ROOT.glob("*.md"), *ROOT.glob("*/README.md"), *ROOT.glob("docs/*.md")]
        if "```python" in path.read_text() or "```console" in path.read_text()
    }
    - PLAYED
)
OWN_DATABASE = {
    Path("docs/from-django-post-office.md"), Path("docs/tutorial-mail.md"), Path("docs/async-fastapi.md"),
}  # fmt: skip
RUN = ("$ effects ", "$ pytest ", "$ python -c ", "$ python shop.py", "$ python manage.py ")
