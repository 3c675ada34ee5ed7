"""`effects email preview` and `templates`: what the templates make of a context, and what is wrong with them."""

from __future__ import annotations

import tempfile
from importlib.resources import files
from pathlib import Path
from typing import Any

import click

from effects.cli import CommandResult, Context, Table, command, limit_option, listed, output_file, parse_object
from effects.extend.process import ExitCode
from effects.extend.text import nearest
from effects_email.api import Preview, preview_email
from effects_email.errors import EmailInvalid, TemplateError
from effects_email.message.attachments import File
from effects_email.state import state_of
from effects_email.templates.gallery import INDEX, gallery_of, lint

STARTERS = files("effects_email.templates") / "starters"
image_option = click.option(
    "--image",
    "images",
    metavar="ID=FILE",
    multiple=True,
    help="Inline image that the HTML shows by cid:ID. Repeatable.",
)


@click.command()
@click.argument("template")
@click.option("--context", "context_file", metavar="FILE", type=click.File("rb"),
              help="JSON file of the template's variables; - reads stdin. Default: no variables.")  # fmt: skip
@click.option("--locale", metavar="LOCALE", help="Locale, such as de or de-AT. Default: the template's own.")
@image_option
@click.option("--html", is_flag=True, help="HTML part, opened in the browser.")
@click.option(
    "--eml", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path), help="File for the whole message."
)
@command
def preview(
    context: Context,
    *,
    template: str,
    context_file: Any,
    locale: str | None,
    images: tuple[str, ...],
    html: bool,
    eml: Path | None,
) -> CommandResult:
    """Render TEMPLATE and show its text.

    Nothing is written to the database and nothing is sent.
    """
    values = parse_object(context_file.read(), "--context", EmailInvalid) if context_file is not None else {}
    files = [_image(image) for image in images]
    rendered = preview_email(template, context=values, locale=locale, attachments=files, effects=context.bare_app)
    facts = {"subject": rendered.source.subject, "locale": rendered.locale, "version": rendered.template_version}
    if eml is not None:
        with output_file(eml) as file:
            file.write(rendered.eml)
        return CommandResult({**facts, "file": str(eml)}, f"{eml} has {len(rendered.eml):,} bytes")
    if html:
        url = _browse(rendered)
        return CommandResult({**facts, "url": url}, url)
    text = rendered.source.text
    return CommandResult({**facts, "text": text}, [facts, text.removesuffix("\n")])


def _image(text: str) -> File:
    content_id, _, path = text.partition("=")
    if not content_id or not path:
        raise EmailInvalid(f"--image is {text!r}; give ID=FILE, such as logo=logo.png")
    return File(path, content_id=content_id)


def _browse(rendered: Preview) -> str:
    """Show the HTML part in the browser, and return its address."""
    if rendered.html is None:
        raise TemplateError("this template has no body.html")
    with tempfile.NamedTemporaryFile("w", prefix="effects-", suffix=".html", delete=False, encoding="utf-8") as file:
        file.write(rendered.html)
    click.launch(file.name)
    return f"file://{file.name}"


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@image_option
@command
def gallery(context: Context, *, folder: Path, images: tuple[str, ...]) -> CommandResult:
    """Write all templates into DIR as HTML and text.

    index.html shows them all. They are shown with the cases of their previews.json and with their variables' names.
    Exit code 1 if one cannot be shown.
    """
    pages, files = gallery_of(context.bare_app, [_image(image) for image in images])
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, text in files.items():
        with output_file(folder / name) as file:
            file.write(text.encode())
    failed = [page for page in pages if page.problem is not None]
    columns = ("template", "locale", "case", "problem")
    rows = [(page.template, page.locale or "default", page.case, page.problem) for page in failed]
    blocks = [f"{folder / INDEX}: {len(pages)} pages", *([Table(columns, rows, empty="no problems")] if failed else [])]
    document = {"index": str(folder / INDEX), "pages": pages}
    return CommandResult(document, blocks, exit_code=ExitCode.FINDINGS if failed else ExitCode.DONE)


@click.group()
def templates() -> None:
    """Inspect the app's templates."""


@templates.command("list")
@limit_option
@command
def list_(context: Context, *, limit: int) -> CommandResult:
    """List templates with their languages, versions and parts."""
    folder = state_of(context.bare_app).folder
    rows: list[tuple[str | None, ...]] = []
    for name, locale in folder.names():
        try:
            version = folder.find(name, locale)
        except TemplateError as error:
            rows.append((name, locale or "default", None, str(error), None))
            continue
        parts = " ".join(part.removeprefix("body.") for part in version.parts if part != "subject.txt")
        rows.append((name, locale or "default", version.version, parts, version.declared.category))
    columns = ("template", "locale", "version", "parts", "category")
    empty = f"no templates in {folder.place}"
    return listed(
        rows,
        limit,
        lambda shown: Table(columns, shown, empty=empty),
        document=lambda row: dict(zip(columns, row, strict=True)),
    )


@templates.command("lint")
@command
def lint_(context: Context) -> CommandResult:
    """Check templates for errors and likely mistakes.

    Exit code 1 if anything is found.
    """
    findings = lint(state_of(context.bare_app).folder)
    rows = [(finding.template, finding.locale or "default", finding.problem) for finding in findings]
    table = Table(("template", "locale", "problem"), rows, empty="no problems")
    return CommandResult(table, exit_code=ExitCode.FINDINGS if findings else ExitCode.DONE)


@templates.command()
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.argument("names", nargs=-1, metavar="[NAME]...")
@command
def start(context: Context, *, folder: Path, names: tuple[str, ...]) -> CommandResult:
    """Write starter templates into DIR.

    All of them, or those that are named. They are Markdown, for you to change. A template that is there already is left
    as it is.
    """
    shipped = {starter.name: starter for starter in STARTERS.iterdir()}
    for name in names:
        if name not in shipped:
            names_shown = ", ".join(sorted(shipped))
            raise TemplateError(
                f"there is no starter template {name!r}{nearest(name, shipped)} (there are {names_shown})"
            )
    written: list[str] = []
    for name in sorted(names or shipped):
        if not (folder / name).exists():
            (folder / name).mkdir(parents=True)
            for file in shipped[name].iterdir():
                with output_file(folder / name / file.name) as copied:
                    copied.write(file.read_bytes())
            written.append(name)
    text = f"{folder}: {', '.join(written)}" if written else f"{folder} has them already"
    return CommandResult({"folder": str(folder), "written": written}, text)
