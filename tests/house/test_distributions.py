"""Four distributions of one version, the packages built alike."""

from __future__ import annotations

import json

from effects.version import VERSION
from tests.house.source import CORE, DISTRIBUTIONS, package_of, pyproject

PACKAGES = [name for name in DISTRIBUTIONS if name != CORE]
OWN = {"name", "description", "dependencies", "optional-dependencies", "entry-points"}


def test_a_package_requires_the_core_of_its_own_version() -> None:
    first = {distribution: pyproject(distribution)["project"]["dependencies"][0] for distribution in PACKAGES}
    assert first == dict.fromkeys(PACKAGES, f"{CORE}=={VERSION}")


def test_packages_are_built_alike() -> None:
    assert len({_build(distribution) for distribution in PACKAGES}) == 1


def _build(distribution: str) -> str:
    """How it is built and which groups it has entry points in, without its name."""
    document = pyproject(distribution)
    project = {key: value for key, value in document["project"].items() if key not in OWN}
    groups = sorted(document["project"]["entry-points"])
    text = json.dumps([document["build-system"], document["tool"], project, groups])
    return text.replace(package_of(distribution), "PACKAGE")


def test_a_package_offers_only_modules_of_its_own() -> None:
    offered = {
        distribution: {
            value.partition(":")[0].partition(".")[0]
            for entries in pyproject(distribution)["project"]["entry-points"].values()
            for value in entries.values()
        }
        for distribution in PACKAGES
    }
    assert offered == {distribution: {package_of(distribution)} for distribution in PACKAGES}


def test_each_distribution_has_the_licence() -> None:
    assert len({(folder / "LICENSE").read_bytes() for folder in DISTRIBUTIONS.values()}) == 1
