"""Builds the distributions, and installs them into an environment that has the dependencies, but not this checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Environment:
    """A virtual environment. Its dependencies are those of the tests, without any distribution of this project."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=False)
        self.bin = folder / "bin"
        [self.site] = folder.glob("lib/python*/site-packages")
        dependencies = folder / "dependencies"
        dependencies.mkdir()
        for entry in _installed():
            (dependencies / entry.name).symlink_to(entry)
        (self.site / "dependencies.pth").write_text(f"{dependencies}\n")

    def install(self, distribution: Path) -> None:
        """Install a wheel, or build one of an sdist or a folder and install that."""
        self.pip("install", "--no-build-isolation", "--force-reinstall", distribution)

    def uninstall(self, name: str) -> None:
        self.pip("uninstall", "--yes", name)

    def pip(self, *arguments: object) -> None:
        """Run pip on this environment, without an index and without dependencies: they are there."""
        pip = [sys.executable, "-m", "pip", "--python", self.bin / "python", "--disable-pip-version-check", "--quiet"]
        run(*pip, *arguments, PIP_NO_INDEX="1", PIP_NO_DEPS="1")


def build(folder: Path) -> tuple[Path, Path]:
    """Build this checkout; gives the wheel and the sdist."""
    run(sys.executable, "-m", "hatchling", "build", "-d", folder, cwd=ROOT)
    [wheel] = folder.glob("*.whl")
    [sdist] = folder.glob("*.tar.gz")
    return wheel, sdist


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
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("EFFECTS_", "PYTHON", "PYTEST_"))}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env={**kept, **variables}, timeout=380, check=False, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == code, done.stdout
    return done.stdout


def _installed() -> list[Path]:
    """What is installed beside this project: its dependencies and the tools of the tests."""
    entries = (entry for folder in sys.path if folder.endswith("site-packages") for entry in Path(folder).iterdir())
    skipped = ("effects", "__pycache__", "_effects", "__editable__")
    return [entry for entry in entries if not entry.name.startswith(skipped) and entry.suffix != ".pth"]
