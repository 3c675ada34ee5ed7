"""Each patch beside this file takes one fix out again; the tests that it names must then fail.

A patch is a unified diff that `git apply` takes from the project's root. Its first lines name the tests:

    # test: tests/core/test_answers.py::test_a_wrong_wait_uses_up_an_attempt

Each name is that of one test, with its parameters.
One that no longer applies, or names a test that is not there, is a failure: mend it with the code that it is about.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.sampling import sample

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent
PATCHES = sorted(path.name for path in FOLDER.glob("*.patch"))
COPIED = ("effects", "email", "webhooks", "reports", "tests")
SAMPLE_SIZE = 8
LEFT_OUT = (".git", ".venv", *COPIED)
PATIENCE_SECONDS = "20"  # several times what the slowest of their waits takes, a third of what other runs allow
TEST_SECONDS = 120  # after which a test that hangs without the fix has failed
TIMEOUT_SECONDS = 300  # what a failed test leaves behind may take long to stop
FAILED = re.compile(r"^(\d+) failed(?!.* passed)", re.MULTILINE)  # not: an error of a fixture, or no such test


def named_tests(patch: str) -> list[str]:
    head = (FOLDER / patch).read_text().split("\n--- ")[0]
    return [line.removeprefix("# test:").strip() for line in head.splitlines() if line.startswith("# test:")]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The project again: what may be patched as a copy (with its compiled files), the rest as links."""
    for entry in ROOT.iterdir():
        if entry.name not in LEFT_OUT:
            (tmp_path / entry.name).symlink_to(entry)
    for name in COPIED:
        shutil.copytree(ROOT / name, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("patch", PATCHES)
def test_each_still_applies_and_names_its_tests(patch: str) -> None:
    command = ["git", "apply", "--check", FOLDER / patch]
    applied = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert applied.returncode == 0, f"the patch no longer applies:\n{applied.stderr}"
    assert named_tests(patch), "its first line must be `# test: path::name`"
    for path, name in (test.partition("[")[0].split("::") for test in named_tests(patch)):
        assert f"def {name}(" in (ROOT / path).read_text(), f"{path} has no {name}"


@pytest.mark.timeout(4 * TIMEOUT_SECONDS)
@pytest.mark.parametrize("patch", sample(PATCHES, SAMPLE_SIZE))
def test_without_its_fix_a_test_fails(patch: str, tree: Path, postgresql_server: str) -> None:
    tests = named_tests(patch)
    subprocess.run(["git", "apply", FOLDER / patch], cwd=tree, check=True)
    paths = [tree, *(tree / name for name in COPIED[1:4])]
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "GIT_"))},
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "EFFECTS_TEST_DATABASE_URL": postgresql_server,
        "EFFECTS_TEST_PATIENCE_SECONDS": PATIENCE_SECONDS,
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # to load them all takes longer than the test
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "pytest_timeout", *tests]
    try:
        run = subprocess.run(
            [*command, f"--timeout={TEST_SECONDS}"], cwd=tree, env=environment, capture_output=True, text=True,
            timeout=TIMEOUT_SECONDS * len(tests), check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return  # a call into C that never ends, which no timeout of pytest's interrupts, has failed as well
    ended = f"{tests} ended with {run.returncode}:\n{run.stdout[-2000:]}{run.stderr}"
    assert FAILED.findall(run.stdout) == [str(len(tests))], ended


def test_there_are_mutants() -> None:
    assert len(PATCHES) >= 10
