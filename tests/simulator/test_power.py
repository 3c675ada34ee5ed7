"""Worlds fail on a tree whose code is broken on purpose: patches here and in `tests/mutants` that name a seed.

    # seed: 17

is the first of the seeds from 0 on whose world fails with it. `make soak` hunts from 0, every other run from there.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.sampling import is_full, sample

ROOT = Path(__file__).parents[2]
SEED = re.compile(r"^# seed: (\d+)$", re.MULTILINE)
FOLDERS = (Path(__file__).parent / "mutants", ROOT / "tests/mutants")
PATCHES = [path for folder in FOLDERS for path in sorted(folder.glob("*.patch")) if SEED.search(path.read_text())]
OWN = [path for path in PATCHES if path.parent == FOLDERS[0]]  # those of tests/mutants have a test there
COPIED = ("effects", "email", "webhooks", "reports", "tests")
WORLDS = 500
SAMPLE_SIZE = 2


@pytest.mark.parametrize("patch", OWN, ids=lambda path: path.stem)
def test_each_still_applies(patch: Path) -> None:
    subprocess.run(["git", "apply", "--check", patch], cwd=ROOT, check=True)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("patch", sample(PATCHES, SAMPLE_SIZE), ids=lambda path: path.stem)
def test_a_world_fails_without_what_the_patch_takes_out(patch: Path, tmp_path: Path) -> None:
    for name in COPIED:
        shutil.copytree(ROOT / name, tmp_path / name)
    subprocess.run(["git", "apply", patch], cwd=tmp_path, check=True)
    [first] = SEED.findall(patch.read_text())
    command = [sys.executable, "-m", "tests.simulator.hunt", "0" if is_full() else first, "--worlds", str(WORLDS)]
    paths = [tmp_path, *(tmp_path / name for name in COPIED[1:4])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    print(patch.stem, *ran.stdout.splitlines()[:3], sep="\n")
    assert ran.returncode == 1, ran.stdout[-2000:] + ran.stderr[-2000:]
    assert ran.stdout.startswith("seed "), ran.stderr[-2000:]
