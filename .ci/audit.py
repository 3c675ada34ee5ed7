"""Ask pip-audit about the lowest releases that our distributions admit, and about those that are installed.

Exit code 1 where one has a known hole. Where the advisories cannot be reached the audit is skipped with a word: whether
they can is shown by a release that has holes for certain, which must be found.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = (ROOT, ROOT / "email", ROOT / "webhooks", ROOT / "reports")
KNOWN_HOLE = "pyyaml==5.3"  # CVE-2020-14343
_LOWEST = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?\s*>=\s*([0-9][^,;\s]*)")


def lowest_releases(requirements: Iterable[str]) -> dict[str, str]:
    """Name → the lowest release that these requirements admit; those without a lower bound are left out."""
    bounds = (_LOWEST.match(requirement) for requirement in requirements)
    return {bound[1].lower(): bound[2] for bound in bounds if bound is not None}


def holes(report: dict[str, Any]) -> dict[str, list[str]] | None:
    """Release → its advisories; None where the release that has holes for certain was not found to have any."""
    advisories = {
        f"{release['name']}=={release['version']}": [hole["id"] for hole in release["vulns"]]
        for release in report["dependencies"]
        if release.get("vulns")
    }
    return advisories if advisories.pop(KNOWN_HOLE, None) else None


def declared() -> list[str]:
    """The requirements of every distribution, without those of the benchmarks, which are pinned."""
    return [line for folder in FOLDERS for line in _declared_in(folder)]


def _declared_in(folder: Path) -> list[str]:
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    extras = project.get("optional-dependencies", {})
    return [*project["dependencies"], *(line for name in sorted(extras) if name != "bench" for line in extras[name])]


def _installed() -> dict[str, str]:
    skipped = ("effects", "pyyaml", "pip", "setuptools")
    return {
        package.name.lower(): package.version
        for package in distributions()
        if package.name.lower() not in skipped and not package.name.startswith("effects-toolkit")
    }


def _ask(releases: dict[str, str]) -> dict[str, list[str]] | None:
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join([KNOWN_HOLE, *(f"{name}=={version}" for name, version in releases.items())]))
        file.flush()
        command = [sys.executable, "-m", "pip_audit", "--requirement", file.name, "--no-deps", "--disable-pip"]
        options = ["--format", "json", "--progress-spinner", "off", "--timeout", "10"]
        answer = subprocess.run([*command, *options], capture_output=True, text=True, timeout=300, check=False)  # noqa: S603
    try:
        return holes(json.loads(answer.stdout))
    except (ValueError, KeyError):
        return None


def main() -> int:
    """Print what was found; the exit code."""
    code = 0
    for what, releases in (("lowest", lowest_releases(declared())), ("installed", _installed())):
        advisories = _ask(releases)
        if advisories is None:
            print(f"audit of {what} releases: skipped, the advisories cannot be reached")
            continue
        for release, ids in sorted(advisories.items()):
            print(f"audit of {what} releases: {release} has {', '.join(ids)}")
        print(f"audit of {what} releases: {len(advisories)} of {len(releases)} have known holes")
        code = code or int(bool(advisories))
    return code


if __name__ == "__main__":
    sys.exit(main())
