"""The three packages have one shape, and import only what a third-party package may."""

from __future__ import annotations

import ast
import inspect
import re
from collections import Counter
from importlib import import_module
from pathlib import Path
from types import ModuleType

import effects
from tests.house.source import PACKAGES, ROOT, modules, name_of

SUBJECTS = {
    path.stem: import_module(f"effects.extend.{path.stem}")
    for path in sorted((PACKAGES["effects"] / "extend").glob("[a-z]*.py"))
}
SUBJECTS_MAX, SUBJECT_NAMES_MAX = 12, 20
DOORS = (
    "effects",
    "effects.cli",
    *(f"effects.extend.{subject}" for subject in SUBJECTS),
    "effects.testing",
    "effects.web",
)
# For apps and their frameworks, not for packages.
APP_DOORS = (
    "effects.alembic", "effects.contrib.django", "effects.contrib.django.testing", "effects.contrib.opentelemetry",
)  # fmt: skip
BUILT_IN = ("effects_email", "effects_webhooks", "effects_reports")

# What a package brings for one of these frameworks uses the door that it has.
OF_A_FRAMEWORK = {("email/effects_email/django.py", "effects.contrib")}

# Each is a module, or a folder where one module would be too large.
ROLES = (
    "api", "async_api", "request", "writing", "jobs", "loading", "routing", "transport", "classify", "tables",
    "tables/ledger", "tables/schema", "tables/retention", "retention", "admin", "commands", "dashboard", "explanation",
    "settings", "state", "wiring", "testing", "errors", "receiver", "migrations",
)  # fmt: skip
# (package, role) → why it has none.
ABSENT = {
    ("effects_reports", "receiver"): "nothing comes in; `downloads` answers requests for files",
    ("effects_webhooks", "async_api"): "in `api`",
    ("effects_webhooks", "explanation"): "in `classify`: both read the table of `retry_rules`",
    ("effects_webhooks", "loading"): "in `jobs`",
    ("effects_webhooks", "retention"): "in `jobs`: one walk",
    ("effects_webhooks", "routing"): "in `writing`",
    ("effects_webhooks", "state"): "in `settings`",
    ("effects_webhooks", "tables/retention"): "in `tables/events`",
}
# What only one package has, beside the roles.
OWN = {
    "effects_email": {
        "django", "dkim", "domain", "events", "message", "oauth", "personal", "providers", "returned", "suppression",
        "templates", "unsubscribe",
    },
    "effects_webhooks": {"echoes", "endpoint_values", "health", "retry_rules", "tenants"},
    "effects_reports": {
        "definitions", "delivery", "downloads", "formats", "readers", "runs", "source",
    },
}  # fmt: skip


def _parts(folder: Path) -> set[str]:
    """The modules and packages of a folder."""
    return {
        path.stem
        for path in folder.iterdir()
        if (path.suffix == ".py" and path.name != "__init__.py") or (path / "__init__.py").exists()
    }


def test_a_package_has_the_shape_of_the_others() -> None:
    """Who knows one knows all; docs/architecture.md has the table."""
    missing, beside = set(), set()
    for package in BUILT_IN:
        folder = PACKAGES[package]
        roles = {role for role in ROLES if (package, role) not in ABSENT}
        missing |= {
            f"{package}.{role}"
            for role in roles
            if not (folder / f"{role}.py").exists() and not (folder / role).is_dir()
        }
        beside |= {f"{package}.{part}" for part in _parts(folder) - roles - OWN[package]}
    assert (missing, beside) == (set(), set())


def test_modules_of_one_package_alone_have_names_of_their_own() -> None:
    names = Counter(name for own in OWN.values() for name in own)
    assert [name for name, packages in names.items() if packages > 1] == []


def test_a_role_that_a_package_lacks_has_no_module() -> None:
    there = [key for key in ABSENT if (PACKAGES[key[0]] / f"{key[1]}.py").exists()]
    assert there == []


def test_the_architecture_lists_every_role() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert [role for role in ROLES if "/" not in role and f"`{role}" not in text] == []


def _imports(tree: ast.Module) -> list[tuple[str, list[str]]]:
    """Each module that is imported from the core, with the names."""
    imported = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "effects":
            imported.append((node.module or "", [alias.name for alias in node.names]))
        elif isinstance(node, ast.Import):
            imported += [(alias.name, []) for alias in node.names if alias.name.split(".")[0] == "effects"]
    return imported


def _of_packages() -> dict[Path, ast.Module]:
    folders = [PACKAGES[package] for package in BUILT_IN]
    return {path: tree for path, tree in modules().items() if any(path.is_relative_to(folder) for folder in folders)}


def test_packages_import_only_the_cores_public_modules() -> None:
    beside = [
        f"{name_of(path)}: {module} {', '.join(names)}"
        for path, tree in _of_packages().items()
        for module, names in _imports(tree)
        if (name_of(path), module) not in OF_A_FRAMEWORK
        and (module not in DOORS or (module == "effects" and not set(names) <= set(effects.__all__)))
    ]
    assert beside == []


def test_extend_is_a_dozen_subjects_of_twenty_names() -> None:
    assert len(SUBJECTS) <= SUBJECTS_MAX
    assert {
        name: len(subject.__all__) for name, subject in SUBJECTS.items() if len(subject.__all__) > SUBJECT_NAMES_MAX
    } == {}


def _names() -> list[tuple[ModuleType, str]]:
    return [(subject, name) for subject in SUBJECTS.values() for name in subject.__all__]


def test_every_name_of_extend_is_documented() -> None:
    """By a docstring, or by a line in that of its subject."""
    silent = []
    for subject, name in _names():
        exported = getattr(subject, name)
        documented = inspect.isclass(exported) or inspect.isroutine(exported) or inspect.ismodule(exported)
        text = (exported.__doc__ or "") if documented else _listed(subject, name)
        if not text.strip() or text.startswith(f"{name}("):  # a docstring that a decorator made
            silent.append(f"{subject.__name__}.{name}")
    assert silent == []


def _listed(subject: ModuleType, name: str) -> str:
    lines = (subject.__doc__ or "").splitlines()
    return next((line for line in lines if name in line.replace(",", " ").split()), "")


def test_every_name_of_extend_is_used() -> None:
    """By a built-in package, or by the guide that builds a fourth one. What no one uses goes."""
    used = {name for tree in _of_packages().values() for module, names in _imports(tree) for name in names}
    migrations = [path for package in BUILT_IN for path in (PACKAGES[package] / "migrations").rglob("*.py")]
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "adding-a-package.md", *migrations)]
    assert [name for _, name in _names() if name not in used and not any(name in text for text in texts)] == []


def test_documents_import_only_public_modules() -> None:
    """And from the packages, whose modules are their own."""
    documents = [ROOT / "README.md", *sorted(ROOT.glob("*/README.md")), *sorted(ROOT.glob("docs/*.md"))]
    imports = re.compile(r"^(?:from|import) (effects(?:\.\w+)*)", re.MULTILINE)
    behind = [
        f"{name_of(path)}: {module}"
        for path in documents
        for module in imports.findall(path.read_text(encoding="utf-8"))
        if module not in DOORS + APP_DOORS
    ]
    assert behind == []


def test_the_readme_of_a_package_names_modules_that_exist() -> None:
    missing = []
    for package in BUILT_IN:
        folder = PACKAGES[package]
        _, _, inside = (folder.parent / "README.md").read_text(encoding="utf-8").partition("\n## Inside\n")
        names = set(re.findall(r"`([a-z_]+/?)`", inside))
        assert len(names) > 10, package
        folders = {f"{path.name}/" for path in folder.rglob("*") if path.is_dir()}
        there = {path.stem for path in folder.rglob("*.py")} | folders
        missing += [f"{package}: {name}" for name in sorted(names - there - {"send_on_loop"})]
    assert missing == []
