"""Templates: a gallery, and each with its text, its source, its problems and the versions that were sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from effects import ConfigurationError, EffectsError
from effects.extend import moment
from effects.web import PageAnswer, Visit, text_of
from effects_email.dashboard.frames import framed, remote_hosts
from effects_email.errors import TemplateNotFound
from effects_email.state import state_of
from effects_email.tables.versions import read_versions
from effects_email.templates.folder import Version
from effects_email.templates.lint import lint
from effects_email.templates.rendering import Rendered
from effects_email.templates.samples import cases_of

KEPT_SECONDS = 10.0
CLIPPED_BYTES = 102 * 1024  # where Gmail cuts a message
GALLERY_MAX = 60


class Shown(NamedTuple):
    """A template of the gallery; `error`: why it cannot be shown."""

    name: str
    locale: str | None
    version: Version | None
    subject: str | None
    error: str | None


def templates(visit: Visit) -> PageAnswer:
    """Every template in every language, as it looks."""
    try:
        folder = state_of(visit.app).folder
    except ConfigurationError as error:
        return visit.page("email/templates.html", shown=[], place=None, problem=str(error), more=0)
    names = folder.names()
    shown = [_shown(visit, name, locale) for name, locale in names[:GALLERY_MAX]]
    return visit.page(
        "email/templates.html", shown=shown, place=folder.place, problem=None, more=len(names) - GALLERY_MAX
    )


def _shown(visit: Visit, name: str, locale: str | None) -> Shown:
    state = state_of(visit.app)
    try:
        version = state.folder.find(name, locale)
        context = next(iter(cases_of(state.folder, version).values()))
        return Shown(name, locale, version, state.renderer.render(version, context).subject, None)
    except EffectsError as error:
        return Shown(name, locale, None, None, str(error))


def template(visit: Visit) -> PageAnswer:
    """One template, by its first case or the one that is asked for."""
    version, case, cases = _chosen(visit)
    state = state_of(visit.app)
    problem, rendered = None, None
    try:
        rendered = state.renderer.render(version, cases[case])
    except EffectsError as error:
        problem = str(error)
    with visit.app.store.read() as connection:
        sent = read_versions(visit.app.store, connection, version.name)
    findings = visit.read("templates", KEPT_SECONDS, lambda: lint(state.folder))
    return visit.page(
        "email/template.html", template=version, cases=list(cases), case=case, rendered=rendered, problem=problem,
        locales=[locale for name, locale in state.folder.names() if name == version.name],
        findings=[each for each in findings if (each.template, each.locale) == (version.name, version.locale)],
        sent=[(row, moment(row.first_at), moment(row.last_at)) for row in sent],
        size=_size(rendered), clipped=CLIPPED_BYTES, hosts=remote_hosts(rendered.html if rendered else None),
        frame=visit.url("email_template_frame", name=version.name, locale=version.locale, case=case),
    )  # fmt: skip


def _size(rendered: Rendered | None) -> int:
    return 0 if rendered is None else len((rendered.html or rendered.text).encode())


def frame(visit: Visit) -> PageAnswer:
    """The HTML of a template, for a frame."""
    version, case, cases = _chosen(visit)
    html = state_of(visit.app).renderer.render(version, cases[case]).html
    if html is None:
        raise TemplateNotFound(f"template {version.name!r} has no HTML")
    return framed(html)


def _chosen(visit: Visit) -> tuple[Version, str, dict[str, Mapping[str, Any]]]:
    try:
        folder = state_of(visit.app).folder
    except ConfigurationError as error:
        raise TemplateNotFound(str(error)) from None
    version = folder.find(text_of(visit.query, "name") or "", text_of(visit.query, "locale"))
    cases = cases_of(folder, version)
    case = visit.query.get("case", "")
    return version, case if case in cases else next(iter(cases)), cases
