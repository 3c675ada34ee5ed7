"""`make docs`: the site builds without a warning, has every document, and a link that leads nowhere fails it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.house.source import ROOT

CONTRIBUTORS = "Project"
USER_PAGES_MAX, NEWCOMER_PAGES_MAX = 30, 8
CODE_COLUMNS = 76
PAGE_WORDS_MAX = 1500
WIDE_LINES_MAX = 82

pytestmark = pytest.mark.timeout(300)  # a build is seconds of CPU, and minutes on a busy machine


def build(folder: Path, target: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(target)], cwd=folder,
        capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip


def pages(entries: list[Any]) -> list[str]:
    return [
        page
        for entry in entries
        for value in ([entry] if isinstance(entry, str) else entry.values())
        for page in ([value] if isinstance(value, str) else pages(value))
    ]


def test_the_site_builds_and_its_pages_are_there(tmp_path: Path) -> None:
    built = build(ROOT, tmp_path / "site")
    assert built.returncode == 0, built.stderr
    reference = (tmp_path / "site" / "reference" / "index.html").read_text()
    for name in ("effects.calls.enqueue.enqueue", "effects.app.effects.Effects.on", "effects.app.hooks.HookEvent"):
        assert f'id="{name}"' in reference
    fences = [page for page in (tmp_path / "site").rglob("index.html") if "```" in page.read_text()]
    assert fences == []  # a block that is not shown as one
    index = json.loads((tmp_path / "site" / "search" / "search_index.json").read_text())["docs"]
    boost = {entry["location"].partition("#")[0]: entry.get("boost", 1) for entry in index}
    assert boost["jobs/"] > boost["operations/"] > boost["reference/"]
    assert "mistakes/" not in boost
    assert "fonts.googleapis.com" not in (tmp_path / "site" / "index.html").read_text()


def config() -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / "mkdocs.yml").read_text()))


def test_every_document_is_in_the_menu_or_one_link_from_it() -> None:
    menu, beside = set(pages(config()["nav"])), set(config()["not_in_nav"].split())
    assert {path.name for path in (ROOT / "docs").glob("*.md")} - menu == beside - {"examples.md"}
    texts = [
        path.read_text()
        for path in [*(ROOT / "docs").glob("*.md"), *ROOT.glob("*/README.md"), ROOT / "README.md"]
        if path.name in menu or path.name == "README.md"
    ]
    assert {page for page in beside if not any(f"{page})" in text or f"{page}#" in text for text in texts)} <= {
        "examples.md"
    }


def test_the_menu_is_short() -> None:
    tabs = {title: pages([tab]) for tab in config()["nav"] for title in tab}
    assert len(tabs["Start"]) <= NEWCOMER_PAGES_MAX
    assert sum(len(entries) for title, entries in tabs.items() if title != CONTRIBUTORS) <= USER_PAGES_MAX


def test_a_page_about_webhooks_is_read_in_one_sitting() -> None:
    names = [*(ROOT / "docs").glob("webhook*.md"), ROOT / "webhooks" / "README.md"]
    assert len(names) > 1
    assert {path.name: words for path in names if (words := len(path.read_text().split())) > PAGE_WORDS_MAX} == {}


def test_code_on_the_pages_of_users_fits_their_width() -> None:
    """At most so many lines do not: addresses and secrets that cannot be wrapped."""
    contributors = set(pages([tab for tab in config()["nav"] if CONTRIBUTORS in tab]))
    names = [*(ROOT / "docs").glob("*.md"), *ROOT.glob("*/README.md"), ROOT / "README.md"]
    wide = [
        f"{path.relative_to(ROOT)}: {line}"
        for path in names
        if path.name not in contributors and path.parent.name not in ("effects", "tests", "benchmarks")
        for line in code(path.read_text())
        if len(line) > CODE_COLUMNS
    ]
    assert len(wide) <= WIDE_LINES_MAX, wide


def code(text: str) -> list[str]:
    return [
        line
        for block in re.findall(r"^ *```\w.*?^ *```$", text, re.MULTILINE | re.DOTALL)
        for line in block.splitlines()
    ]


def test_the_first_page_has_the_program_of_the_readme() -> None:
    programs = [
        re.findall(r"^```python shop.py\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
        for page in ("README.md", "docs/index.md")
    ]
    assert programs[0] == programs[1]


def test_a_link_that_leads_nowhere_fails_the_build(tmp_path: Path) -> None:
    """Every other page is a title: what they hold is built above."""
    for path in [*ROOT.glob("*.md"), *ROOT.glob("*/README.md"), *ROOT.glob("docs/*.md")]:
        page = tmp_path / path.relative_to(ROOT)
        page.parent.mkdir(exist_ok=True)
        page.write_text(f"# {path.stem}\n")
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    shutil.copy(ROOT / "docs" / "site.css", tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    links = "\n[nowhere](no-such-page.md), [here](schedules.md#no-such-heading), [there](schedules.md)\n"
    (tmp_path / "docs" / "limits.md").write_text("# Limits\n" + links)
    built = build(tmp_path, tmp_path / "site")
    assert built.returncode == 1
    assert "no-such-page.md" in built.stderr
    assert "no-such-heading" in built.stderr
    assert "Aborted with 2 warnings" in built.stdout


def test_the_reference_for_packages_has_every_name() -> None:
    page = (ROOT / "docs" / "reference-extend.md").read_text()
    folder = ROOT / "effects" / "extend"
    subjects = [import_module(f"effects.extend.{path.stem}") for path in folder.glob("[a-z]*.py")]
    names = {name for subject in subjects for name in subject.__all__}
    assert names
    assert {name for name in names if not re.search(rf"[.`]{name}(?:`|$)", page, re.MULTILINE)} == set()
