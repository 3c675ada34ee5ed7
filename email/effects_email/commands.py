"""`effects email`: previews and templates, messages on record, a test of a transport."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import click

from effects.cli.context import Context, actor, json_option, pass_context
from effects.cli.output import Table
from effects_email import operate
from effects_email.api import Preview, preview_email
from effects_email.commands_suppressions import suppressions
from effects_email.errors import EmailInvalid, TemplateError
from effects_email.explanation import explain_command
from effects_email.lint import lint
from effects_email.settings import DEFAULT_TRANSPORT
from effects_email.setup import setup_of

EXIT_WRONG = 1


@click.group()
def email() -> None:
    """Templates, previews, messages, suppressions and transports."""


email.add_command(suppressions)
email.add_command(explain_command)


# -- templates -------------------------------------------------------------------------------------------------------


@email.command()
@click.argument("template")
@click.option("--context", "context_file", metavar="FILE", type=click.File("rb"),
              help="JSON: what the template may use. Default: nothing. - reads stdin.")  # fmt: skip
@click.option("--locale", metavar="LOCALE", help="Such as de or de-AT. Default: the template's own.")
@click.option("--html", is_flag=True, help="Show the HTML in the browser.")
@click.option("--eml", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path), help="Write the whole message.")
@pass_context
def preview(
    context: Context, template: str, *, context_file: Any, locale: str | None, html: bool, eml: Path | None
) -> None:
    """Render TEMPLATE and show its text. Nothing is written to the database and nothing is sent."""
    given = _json(context_file.read()) if context_file is not None else {}
    made = preview_email(template, context=given, locale=locale, effects=context.bare_app)
    if eml is not None:
        eml.write_bytes(made.eml)
        context.echo(f"{eml} has {len(made.eml):,} bytes")
    elif html:
        _browse(context, made)
    else:
        facts = {"subject": made.parts.subject, "locale": made.locale, "version": made.template_version}
        context.echo(facts)
        click.echo(f"\n{made.parts.text}", nl=False)


def _json(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise EmailInvalid(f"--context is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise EmailInvalid("--context must be a JSON object")
    return found


def _browse(context: Context, made: Preview) -> None:
    if made.parts.html is None:
        raise TemplateError("this template has no body.html")
    with tempfile.NamedTemporaryFile("w", prefix="effects-", suffix=".html", delete=False, encoding="utf-8") as file:
        file.write(made.parts.html)
    context.echo(f"file://{file.name}")
    click.launch(file.name)


@email.group()
def templates() -> None:
    """The templates of the app."""


@templates.command("list")
@json_option
@pass_context
def list_(context: Context, as_json: bool) -> None:
    """Every template with its languages, versions and parts."""
    folder = setup_of(context.bare_app).folder
    rows: list[tuple[str | None, ...]] = []
    for name, locale in folder.names():
        try:
            found = folder.find(name, locale)
        except TemplateError as error:
            rows.append((name, locale or "default", None, str(error), None))
            continue
        parts = " ".join(part.removeprefix("body.") for part in found.parts if part != "subject.txt")
        rows.append((name, locale or "default", found.version, parts, found.declared.category))
    columns = ("template", "locale", "version", "parts", "category")
    context.echo(Table(columns, rows, empty=f"{folder.place} has no templates"), as_json)


@templates.command("lint")
@json_option
@pass_context
def lint_(context: Context, as_json: bool) -> int:
    """Look for what would fail or look wrong. Exit code 1 if anything was found."""
    found = lint(setup_of(context.bare_app).folder)
    rows = [(one.template, one.locale or "default", one.problem) for one in found]
    context.echo(Table(("template", "locale", "problem"), rows, empty="nothing is wrong"), as_json)
    return EXIT_WRONG if found else 0


# -- messages --------------------------------------------------------------------------------------------------------


@email.command()
@click.argument("name", metavar="KEY")
@json_option
@pass_context
def show(context: Context, name: str, as_json: bool) -> None:
    """One message by its key, its Message-ID or the id of its job."""
    found = operate.get_email(context.app, name)
    if as_json:
        context.echo(found, as_json)
        return
    facts = {field: getattr(found, field) for field in found.__struct_fields__ if field not in ("recipients", "heard")}
    context.echo(facts)
    if found.recipients:
        rows = [(one.kind, one.address, one.outcome, one.code) for one in found.recipients]
        context.echo(Table(("kind", "recipient", "outcome", "code"), rows))
    if found.heard:
        heard = [(one.provider, one.kind, one.code, one.at) for one in found.heard]
        context.echo(Table(("provider", "said", "code", "at"), heard))


@email.command("list")
@click.argument("address")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True)
@json_option
@pass_context
def list_to(context: Context, address: str, limit: int, as_json: bool) -> None:
    """Messages to ADDRESS, newest first."""
    found = operate.emails_to(context.app, address, limit)
    columns = ("key", "state", "outcome", "template", "tries", "code", "date")
    rows = [(one.key, one.state, one.outcome, one.template, one.tries, one.reply_code, one.date) for one in found]
    context.echo(Table(columns, rows, empty="no message to this address is on record"), as_json)


@email.command()
@click.argument("name", metavar="KEY")
@click.option("--render-again", is_flag=True, help="From the newest template: a new Message-ID, perhaps new words.")
@click.option("--again", is_flag=True, help="Although it was sent, or may have been.")
@click.option("--reason", metavar="TEXT", help="Why; kept with your name.")
@pass_context
def requeue(context: Context, name: str, *, render_again: bool, again: bool, reason: str | None) -> None:
    """Send an ended message as a new job, with the same bytes."""
    made = operate.requeue_email(
        context.app, name, actor=actor(), reason=reason, render_again=render_again, again=again
    )
    context.echo(f"job {made.job_id} sends it")


# -- transports ------------------------------------------------------------------------------------------------------


@email.command()
@click.argument("address")
@click.option("--transport", default=DEFAULT_TRANSPORT, show_default=True, help="The name of one that is set.")
@json_option
@pass_context
def test(context: Context, address: str, transport: str, as_json: bool) -> int:
    """Send a line of text to ADDRESS at once, past the queue, and show what the server said. Exit code 1: not taken."""
    dispatch = operate.send_test_email(context.bare_app, address, transport)
    verdict, reply = dispatch.verdict, dispatch.verdict.reply
    facts = {
        "result": verdict.kind, "why": verdict.reason, "code": verdict.code,
        "stage": reply.stage if reply is not None else None, "reply": reply.text or None if reply is not None else None,
        "server": dispatch.peer, "tls": dispatch.tls, "id": dispatch.provider_id,
        "seconds": {name: round(seconds, 3) for name, seconds in dispatch.phases.items()},
    }  # fmt: skip
    context.echo(facts, as_json)
    return 0 if verdict.kind == "accepted" else EXIT_WRONG
