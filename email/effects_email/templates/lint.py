"""What is wrong with templates, found before they are sent."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec
from jinja2 import Environment, meta

from effects import ConfigurationError
from effects_email.errors import AddressInvalid
from effects_email.message.address import parse_mailbox
from effects_email.settings import check_transport_name
from effects_email.templates.folder import TemplateFolder, Version
from effects_email.templates.layout import LAYOUT_FILE
from effects_email.templates.rendering import Renderer

_IMAGE_WITHOUT_ALT = re.compile(r"<img\b(?![^>]*\balt=)[^>]*>", re.IGNORECASE)
_REMOTE_STYLE = re.compile(r"<link\b[^>]*\bstylesheet\b", re.IGNORECASE)
_SCRIPT = re.compile(r"<(script|form|iframe)\b", re.IGNORECASE)
_TAG_IN_MARKDOWN = re.compile(r"<(?:/?[A-Za-z][A-Za-z0-9-]*(?:\s[^<>]*)?/?>|!--)")
_LAYOUT_VARIABLES = {"content", "subject", "locale"}  # what a page around Markdown is given
_UNESCAPED = re.compile(r"\|\s*safe\b|\bautoescape\s+false\b")


class LintFinding(msgspec.Struct, frozen=True):
    """One thing that is wrong."""

    template: str
    locale: str | None
    problem: str


def lint(folder: TemplateFolder) -> list[LintFinding]:
    """Every template in every language: can it be compiled, do its languages use the same variables, is its HTML fit
    for a mail program.
    """
    findings: list[LintFinding] = []
    variables: dict[str, dict[str | None, set[str]]] = {}
    for name, locale in folder.names():
        try:
            version = folder.find(name, locale)
            Renderer().compile(version)
        except ConfigurationError as error:
            findings.append(LintFinding(name, locale, str(error)))
            continue
        findings += [LintFinding(name, locale, problem) for problem in _problems(version)]
        variables.setdefault(name, {})[locale] = variables_of(version)
    return findings + [finding for name, by_locale in variables.items() for finding in _uneven(name, by_locale)]


def _problems(version: Version) -> Iterator[str]:
    for path, source in sorted(version.sources.items()):
        if path.endswith(".html"):
            if _IMAGE_WITHOUT_ALT.search(source):
                yield f"{path}: an image has no alt text, which is what many readers see"
            if _REMOTE_STYLE.search(source):
                yield f"{path}: a linked style sheet is not loaded; put it into <style>"
            if _SCRIPT.search(source):
                yield f"{path}: scripts, forms and frames do not work in mail"
            if _UNESCAPED.search(source):
                yield f"{path}: escaping is switched off; what is shown there must never come from people"
        elif path.endswith(".md") and _TAG_IN_MARKDOWN.search(source):
            yield f"{path}: HTML within Markdown is shown as text"
    if version.declared.sender is not None:
        try:
            parse_mailbox(version.declared.sender, where="sender")
        except AddressInvalid as error:
            yield f"template.toml: {error}"
    if version.declared.transport is not None:
        try:
            check_transport_name(version.declared.transport)
        except ConfigurationError as error:
            yield f"template.toml: {error}"


def variables_of(version: Version) -> set[str]:
    """What a template takes from its context, by the names at the top."""
    environment = Environment(autoescape=True)  # reads, never renders
    names: set[str] = set()
    for path, source in version.sources.items():
        if not path.endswith(".toml"):
            own = _LAYOUT_VARIABLES if path == LAYOUT_FILE else set()
            names |= meta.find_undeclared_variables(environment.parse(source)) - own
    return names


def _uneven(name: str, by_locale: dict[str | None, set[str]]) -> Iterator[LintFinding]:
    """A variable that one language has and the default has not: callers would forget it."""
    default = by_locale.get(None)
    for locale, used in by_locale.items():
        if default is not None and (extra := used - default):
            yield LintFinding(name, locale, f"uses {', '.join(sorted(extra))}, which the default language does not")
