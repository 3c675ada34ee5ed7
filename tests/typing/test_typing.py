"""Both type checkers find every planted mistake, each where it is, and nothing in the apps that are correct."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.needs import missing

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
PLANTED = FOLDER / "planted.py"
FILES = [PLANTED, *sorted(FOLDER.glob("correct_*.py"))]
Errors = set[tuple[str, int, str]]  # file, line, code

_MARK = re.compile(r"# planted: (?P<mypy>[\w,-]+) \| (?P<pyright>[\w,]+)$")
_MYPY_ERROR = re.compile(r"^(?P<file>.+?):(?P<line>\d+): error: .*\[(?P<code>[\w-]+)\]$", re.MULTILINE)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_mypy_in_strict_mode_reports_the_planted_mistakes_and_nothing_else(tmp_path: Path) -> None:
    """What the project's own check, if it ran, knows of other modules is taken over: it asks as strictly."""
    (tmp_path / "mypy.ini").write_text("[mypy]\nstrict = true\n")
    with suppress(FileNotFoundError):
        shutil.copytree(ROOT / ".mypy_cache", tmp_path, dirs_exist_ok=True)
    output = _checked("mypy", ["--cache-dir", ".", "--no-pretty", *map(str, FILES)], tmp_path)
    errors = {(Path(error["file"]).name, int(error["line"]), error["code"]) for error in _MYPY_ERROR.finditer(output)}
    assert errors == _planted("mypy")


def test_pyright_reports_the_planted_mistakes_and_nothing_else(tmp_path: Path) -> None:
    """In strict mode where nothing is planted. basedpyright is pyright with its node in a wheel."""
    config = {"typeCheckingMode": "strict", "include": [str(file) for file in FILES]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config))
    output = _checked("basedpyright", ["--pythonpath", sys.executable, "--outputjson"], tmp_path)
    document = json.loads(output)
    assert document["summary"]["filesAnalyzed"] == len(FILES)
    errors = {
        (Path(error["file"]).name, error["range"]["start"]["line"] + 1, error["rule"].removeprefix("report"))
        for error in document["generalDiagnostics"]
    }
    assert errors == _planted("pyright")


def _planted(checker: str) -> Errors:
    marks = enumerate(map(_MARK.search, PLANTED.read_text(encoding="utf-8").splitlines()), start=1)
    errors = {
        (PLANTED.name, number, code) for number, mark in marks if mark is not None for code in mark[checker].split(",")
    }
    assert len(errors) >= 20
    return errors


def _checked(checker: str, arguments: list[str], folder: Path) -> str:
    """What a checker prints; its configuration is in the folder."""
    if importlib.util.find_spec(checker) is None:
        missing(f"{checker} is not installed: pip install -e '.[types]'")
    command = [sys.executable, "-m", checker, *arguments]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=False)
    assert ran.returncode == 1, ran.stdout + ran.stderr  # 0: nothing was found; 2: it could not run
    return ran.stdout
