"""What a template is shown with: the cases of its `previews.json`, or names in place of values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from effects_email.errors import TemplateError
from effects_email.templates.folder import TemplateFolder, Version
from effects_email.templates.lint import variables_of

CASES_FILE = "previews.json"
NAMES = "names"  # the case that every template has


class Placeholder:
    """Shows the name of a variable in place of its value, however a template goes into it."""

    __target__ = "https://example.invalid/"  # in its place where a link of Markdown begins with it

    def __init__(self, path: str) -> None:
        self._path = path

    def __getattr__(self, name: str) -> Placeholder:
        if name.startswith("_"):
            raise AttributeError(name)
        return Placeholder(f"{self._path}.{name}")

    def __getitem__(self, name: object) -> Placeholder:
        return Placeholder(f"{self._path}.{name}")

    def __iter__(self) -> Iterator[Placeholder]:
        return iter([Placeholder(f"{self._path}.1"), Placeholder(f"{self._path}.2")])

    def __len__(self) -> int:
        return 2

    def __str__(self) -> str:
        return f"‹{self._path}›"


def cases_of(folder: TemplateFolder, version: Version) -> dict[str, Mapping[str, Any]]:
    """Case → context. The first are those of `previews.json` beside the template: `{"paid": {"total": "12 €"}}`.

    Raises:
        TemplateError: the file is no JSON object of objects.
    """
    cases: dict[str, Mapping[str, Any]] = {}
    file = folder.root.joinpath(version.name, CASES_FILE)
    if file.is_file():
        try:
            cases.update(msgspec.json.decode(file.read_bytes(), type=dict[str, dict[str, Any]]))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise TemplateError(f"template {version.name!r}: {CASES_FILE}: {error}") from None
    cases.setdefault(NAMES, {name: Placeholder(name) for name in sorted(variables_of(version))})
    return cases
