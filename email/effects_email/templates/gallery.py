"""A gallery of templates as files: an index, and each template in each language with each of its sample contexts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from jinja2 import DictLoader, Environment

from effects import Effects, EffectsError
from effects_email.message.attachments import File, data_of, describe, inline_images
from effects_email.state import EmailState, state_of
from effects_email.templates.samples import cases_of

INDEX = "index.html"
_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Templates of {{ place }}</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 0 auto; padding: 1rem;
  color-scheme: light dark; }
ul { display: grid; grid-template-columns: repeat(auto-fill, minmax(20rem, 1fr)); gap: 1rem;
  list-style: none; padding: 0; }
li { border: 1px solid; border-radius: .5rem; padding: .75rem; overflow-wrap: anywhere; }
iframe { width: 100%; height: 20rem; border: 0; background: #fff; }
pre { height: 20rem; overflow: auto; white-space: pre-wrap; margin: 0; }
.problem { font-weight: bold; }
</style>
</head>
<body>
<h1>Templates of {{ place }}</h1>
{% if not pages %}<p>There are none.</p>{% endif %}
{% for name, variants in pages | groupby("template") %}
<h2 id="{{ name }}">{{ name }}</h2>
<ul>
{% for page in variants %}
<li>
<p>{{ page.locale or "default" }}, {{ page.case }}{% if page.subject is not none %}: {{ page.subject }}{% endif %}</p>
{% if page.problem %}<p class="problem">{{ page.problem }}</p>{% endif %}
{% if page.html_file %}<iframe sandbox="" loading="lazy" title="{{ name }}" src="{{ page.html_file }}"></iframe>
{% elif page.text is not none %}<pre>{{ page.text }}</pre>{% endif %}
<p>{% if page.html_file %}<a href="{{ page.html_file }}">HTML</a>{% endif %}
{% if page.text_file %}<a href="{{ page.text_file }}">text</a>{% endif %}</p>
</li>
{% endfor %}
</ul>
{% endfor %}
</body>
</html>
"""


class GalleryPage(msgspec.Struct, frozen=True, kw_only=True):
    """A template in one language with one context. `problem`: why it cannot be shown; the files are None then."""

    template: str
    locale: str | None
    case: str
    subject: str | None = None
    text: str | None = None
    text_file: str | None = None
    html_file: str | None = None
    problem: str | None = None


def gallery_of(app: Effects, images: Sequence[File] = ()) -> tuple[list[GalleryPage], dict[str, str]]:
    """Every template in every language, shown with each case of its `previews.json` and with its variables' names.

    Args:
        images: inline images that templates show by `cid:`; paths.

    Returns:
        The pages; and the files by their names, `index.html` among them.

    Raises:
        ConfigurationError: no folder of templates is set, or it is not there.
        AttachmentInvalid: an image cannot be read.
    """
    state = state_of(app)
    attachments = describe(app, images)
    contents = {attachment.sha256: data_of(app, attachment) for attachment in attachments}
    pages: list[GalleryPage] = []
    files: dict[str, str] = {}
    for name, locale in state.folder.names():
        for page, html in _pages(state, name, locale):
            pages.append(page)
            if page.text_file is not None:
                files[page.text_file] = page.text or ""
            if page.html_file is not None:
                files[page.html_file] = inline_images(html or "", attachments, contents)
    index = Environment(autoescape=True, loader=DictLoader({INDEX: _PAGE}), trim_blocks=True).get_template(INDEX)
    files[INDEX] = index.render(pages=pages, place=state.folder.place)
    return pages, files


def _pages(state: EmailState, name: str, locale: str | None) -> Iterator[tuple[GalleryPage, str | None]]:
    """The pages of a template in one language, each with its HTML."""
    try:
        version = state.folder.find(name, locale)
        cases = cases_of(state.folder, version)
    except EffectsError as error:
        yield GalleryPage(template=name, locale=locale, case="-", problem=str(error)), None
        return
    for number, (case, context) in enumerate(cases.items(), 1):
        try:
            rendered = state.renderer.render(version, context)
        except EffectsError as error:
            yield GalleryPage(template=name, locale=locale, case=case, problem=str(error)), None
            continue
        stem = f"{name.replace('/', '.')}.{locale or 'default'}.{number}"
        page = GalleryPage(
            template=name, locale=locale, case=case, subject=rendered.subject, text=rendered.text,
            text_file=f"{stem}.txt", html_file=f"{stem}.html" if rendered.html is not None else None,
        )  # fmt: skip
        yield page, rendered.html
