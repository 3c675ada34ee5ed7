"""`make docs`: the site builds without a warning, has every document, and a link that leads nowhere fails it."""

from __future__ import annotations

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
    assert "fonts.googleapis.com" not in (tmp_path / "site" / "index.html").read_text()


def test_every_document_has_a_place_in_the_menu() -> None:
    menu = pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    assert {path.name for path in (ROOT / "docs").glob("*.md")} - set(menu) == set()


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
