"""Builds the distributions, and installs them into an environment that has the dependencies, but not this checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from tests.house.source import DISTRIBUTIONS


class Environment:
    """A virtual environment. Its dependencies are those of the tests, without any distribution of this project."""

    def __init__(self, folder: Path, dependencies: Iterable[Path] | None = None) -> None:
        """Make it, with these files and folders of the tests' own environment instead of all."""
        venv.create(folder, with_pip=False)
        self.bin = folder / "bin"
        [self.site] = folder.glob("lib/python*/site-packages")
        self._dependencies = folder / "dependencies"
        self._dependencies.mkdir()
        (self.site / "dependencies.pth").write_text(f"{self._dependencies}\n")
        self.add(_installed() if dependencies is None else dependencies)

    def add(self, dependencies: Iterable[Path]) -> None:
        """Add what is not there yet."""
        for entry in dependencies:
            if not (self._dependencies / entry.name).exists():
                (self._dependencies / entry.name).symlink_to(entry)

    def install(self, *distributions: Path) -> None:
        """Install wheels, or build them of sdists or folders and install those."""
        self.pip("install", "--no-build-isolation", "--force-reinstall", *distributions)

    def uninstall(self, name: str) -> None:
        self.pip("uninstall", "--yes", name)

    def pip(self, *arguments: object) -> None:
        """Run pip on this environment, without an index and without dependencies: they are there."""
        pip = [sys.executable, "-m", "pip", "--python", self.bin / "python", "--disable-pip-version-check", "--quiet"]
        run(*pip, *arguments, PIP_NO_INDEX="1", PIP_NO_DEPS="1")


@dataclass(frozen=True)
class Built:
    """The wheel and the sdist of a distribution."""

    wheel: Path
    sdist: Path


def build(distribution: str, folder: Path) -> Built:
    """Build a distribution of this checkout."""
    run(sys.executable, "-m", "hatchling", "build", "-d", folder, cwd=DISTRIBUTIONS[distribution])
    [wheel] = folder.glob("*.whl")
    [sdist] = folder.glob("*.tar.gz")
    return Built(wheel, sdist)


def required(*requirements: str) -> Iterator[Path]:
    """What these requirements, such as `effects-toolkit[web]`, need in the tests' own environment: theirs, not ours."""
    names = {name for name in _closure(requirements) if name not in DISTRIBUTIONS}
    for distribution in map(metadata.distribution, names):
        site = Path(str(distribution.locate_file("")))
        entries = {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")}
        yield from (site / entry for entry in entries)


def _closure(requirements: Iterable[str]) -> set[str]:
    """The names of the distributions that these requirements lead to."""
    waiting = [Requirement(text) for text in requirements]
    seen: set[tuple[str, str]] = set()
    while waiting:
        requirement = waiting.pop()
        for extra in {"", *requirement.extras}:
            if (requirement.name, extra) not in seen:
                seen.add((requirement.name, extra))
                waiting += _below(requirement.name, extra)
    return {name for name, _ in seen}


def _below(name: str, extra: str) -> list[Requirement]:
    lines = [Requirement(line) for line in metadata.requires(name) or ()]
    return [line for line in lines if line.marker is None or line.marker.evaluate({"extra": extra})]


def foreign_wheel(folder: Path) -> Path:
    """Another project's distribution `effects`, which has a package of that name, as the public index has one."""
    wheel = folder / "effects-0.0.1-py3-none-any.whl"
    info = "effects-0.0.1.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("effects/__init__.py", "from a_module_that_is_not_here import typeclass\n")
        archive.writestr("effects/typeclass.py", "")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: effects\nVersion: 0.0.1\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        names = ["effects/__init__.py", "effects/typeclass.py", *(f"{info}/{name}" for name in ("METADATA", "WHEEL"))]
        archive.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in [*names, f"{info}/RECORD"]))
    return wheel


def run(*command: object, cwd: Path | None = None, code: int = 0, **variables: str) -> str:
    """Run a command without the settings of this process; gives its output, standard error included."""
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env={**kept_variables(), **variables}, timeout=380, check=False,
        text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == code, done.stdout
    return done.stdout


def kept_variables() -> dict[str, str]:
    """The environment variables of this process, without its settings."""
    left_out = ("EFFECTS_", "PYTHON", "PYTEST_")
    return {name: value for name, value in os.environ.items() if not name.startswith(left_out)}


def _installed() -> list[Path]:
    """What is installed beside this project: its dependencies and the tools of the tests."""
    entries = (entry for folder in sys.path if folder.endswith("site-packages") for entry in Path(folder).iterdir())
    skipped = ("effects", "__pycache__", "_effects", "__editable__")
    return [entry for entry in entries if not entry.name.startswith(skipped) and entry.suffix != ".pth"]
