"""Four distributions of one version, the packages built alike."""

from __future__ import annotations

import json

import pytest

from effects.version import VERSION
from tests.house.source import CORE, DISTRIBUTIONS, package_of, pyproject

PACKAGES = [name for name in DISTRIBUTIONS if name != CORE]
OWN = {"name", "description", "dependencies", "optional-dependencies", "entry-points"}


@pytest.mark.parametrize("distribution", PACKAGES)
def test_a_package_requires_the_core_of_its_own_version(distribution: str) -> None:
    assert pyproject(distribution)["project"]["dependencies"][0] == f"{CORE}=={VERSION}"


def test_packages_are_built_alike() -> None:
    assert len({_build(distribution) for distribution in PACKAGES}) == 1


def _build(distribution: str) -> str:
    """How it is built and which groups it has entry points in, without its name."""
    document = pyproject(distribution)
    project = {key: value for key, value in document["project"].items() if key not in OWN}
    groups = sorted(document["project"]["entry-points"])
    text = json.dumps([document["build-system"], document["tool"], project, groups])
    return text.replace(package_of(distribution), "PACKAGE")


@pytest.mark.parametrize("distribution", PACKAGES)
def test_a_package_offers_only_modules_of_its_own(distribution: str) -> None:
    groups = pyproject(distribution)["project"]["entry-points"].values()
    offered = {value.partition(":")[0].partition(".")[0] for entries in groups for value in entries.values()}
    assert offered == {package_of(distribution)}


def test_each_distribution_has_the_licence() -> None:
    assert len({(folder / "LICENSE").read_bytes() for folder in DISTRIBUTIONS.values()}) == 1
