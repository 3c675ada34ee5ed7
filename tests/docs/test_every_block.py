"""No page has a block or a command line that no test looks at: what is not executed as it stands is named here."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import click
import pytest

from effects import Effects
from effects.cli.main import cli
from tests.house.source import ROOT
from tests.support.documents import DOCUMENTS, PLAYED, RUN

# Of the site and of the repository. docs/first-hours are records of what people did, with the mistakes that they made.
PAGES = sorted(
    path.relative_to(ROOT) for pattern in ("*.md", "docs/*.md", "*/README.md") for path in ROOT.glob(pattern)
)
FENCE = re.compile(r"^```(\w*)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CONSOLE_ELSEWHERE = ("$ cd ", "$ pip install ", "$ python -m venv ")  # tests/install installs the wheels
# Page and language → the test that runs it, types it, or compares it with what happens.
ELSEWHERE: dict[tuple[str, str], str] = {
    ("docs/alerts.md", "sh"): "tests/cli/test_alert_rules.py",
    ("docs/compose.md", "text"): "tests/examples/test_deployment_files.py",
    ("docs/django.md", "py"): "tests/examples/test_django_shop.py",
    ("docs/findings.md", "py"): "tests/docs/test_findings.py",
    ("docs/findings.md", "sh"): "tests/docs/test_findings.py",
    ("docs/findings.md", "sql"): "tests/docs/test_findings.py",
    ("docs/from-django-tasks.md", "py"): "tests/examples/test_django_tasks.py",
    ("docs/jobs.md", "sql"): "tests/docs/test_every_block.py",
    **{
        ("docs/partner.md", language): "tests/webhooks/test_partner_page.py"
        for language in ("go", "http", "java", "javascript", "php", "py", "ruby", "sql")
    },
    ("docs/plain-sql.md", "sql"): "tests/conformance/test_views.py",
    ("docs/schedules.md", "py"): "tests/core/test_schedules.py",
    ("docs/telemetry.md", "text"): "tests/contrib/test_trace_of_a_request.py",
}
# What is not run, and why. Commands of ours in it are looked at below.
NOT_RUN = {
    ("docs/cron-and-systemd.md", "text"): "settings, and commands of systemd, which would change this machine",
    (
        "docs/failover.md",
        "text",
    ): "addresses of two hosts; HAProxy's configuration, which tests/peers/haproxy.py has with ports of its own",
    ("docs/email-oauth.md", "text"): "settings of providers; tests/email/wire/test_oauth.py opens the URLs",
    ("docs/failover.md", "yaml"): "configuration of Patroni, which does not run in the tests",
    ("docs/from-celery.md", "text"): "code of Celery, which is not installed here",
    ("docs/from-django-q.md", "text"): "code of django-q, which is not installed here",
    ("docs/partner.md", "csharp"): "Debian has no .NET; its lines are counted",
    ("docs/tutorial-mail.md", "text"): "a mail as it is shown, neither code nor command",
    ("docs/email-domain.md", "text"): "settings with placeholders; commands that are run below",
    ("email/README.md", "text"): "settings with placeholders for hosts and passwords; commands that are run below",
}


def fences(page: Path, *languages: str) -> list[tuple[str, str, str]]:
    """Language, file name or "", and text; of these languages, else of all."""
    blocks = FENCE.findall((ROOT / page).read_text(encoding="utf-8"))
    return [block for block in blocks if not languages or block[0] in languages]


def test_each_block_is_executed_or_has_a_test_of_its_own() -> None:
    executed = {*DOCUMENTS, *PLAYED}
    left = {
        (str(page), language)
        for page in PAGES
        for language, file, _ in fences(page)
        if not (page in executed and (language in ("python", "console") or file))
    }
    assert left == ELSEWHERE.keys() | NOT_RUN.keys()
    assert ELSEWHERE.keys() & NOT_RUN.keys() == set()
    assert [test for test in ELSEWHERE.values() if not (ROOT / test).exists()] == []


def test_each_line_of_a_console_is_run() -> None:
    lines = [
        (str(page), line)
        for page in DOCUMENTS
        for language, _, text in fences(page)
        if language == "console"
        for line in text.splitlines()
        if line.startswith("$ ") and not line.startswith((*RUN, *CONSOLE_ELSEWHERE))
    ]
    assert lines == []


PREFIX = r"(?:docker compose exec worker |python manage\.py )?"
INDENTED = re.compile(rf"^ {{4}}(?:\$ )?{PREFIX}effects (.+)$", re.MULTILINE)
IN_TEXT = re.compile(rf"^(?:\$ )?{PREFIX}effects (.+)$", re.MULTILINE)


def shown() -> list[tuple[str, str]]:
    """Each command line that a page shows outside of what is executed, without the words beside it."""
    lines = []
    for page in PAGES:
        lines += [
            (page, line) for language, _, text in fences(page) if language == "text" for line in IN_TEXT.findall(text)
        ]
        prose = FENCE.sub("", (ROOT / page).read_text(encoding="utf-8"))
        lines += [(page, line) for line in INDENTED.findall(prose) if not line.startswith(".")]
    return [(str(page), re.split(r"\s{3,}| > ", line)[0]) for page, line in lines]


@pytest.mark.parametrize(("page", "line"), shown())
def test_a_command_line_that_is_shown_is_one_that_effects_takes(
    page: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("ctx.json", "events.jsonl"):
        (tmp_path / name).write_text("{}")
    words = shlex.split(line.replace("list|show|add|remove", "list"))
    parse(cli, words, cli.make_context("effects", words, resilient_parsing=True))


def parse(group: click.Group, words: list[str], parent: click.Context) -> None:
    """Raises where a group has no such command, or that command would not take these words."""
    if group.invoke_without_command and not [*parent._protected_args, *parent.args]:
        return
    name, command, rest = group.resolve_command(parent, [*parent._protected_args, *parent.args])
    assert command is not None, words
    is_group = isinstance(command, click.Group)
    with command.make_context(name, rest, parent=parent, resilient_parsing=is_group) as context:
        if isinstance(command, click.Group):
            parse(command, words, context)


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_the_statements_of_the_page_about_jobs_let_another_role_enqueue(app: Effects) -> None:
    grants, call = (
        text.replace("writer", f"writer_{os.getpid()}") for _, _, text in fences(Path("docs/jobs.md"), "sql")
    )
    *grants_to_call, enqueued = call.splitlines()
    with app.engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE ROLE writer_{os.getpid()}")
        connection.exec_driver_sql(grants)
        for grant in grants_to_call:
            connection.exec_driver_sql(grant)
        connection.exec_driver_sql(
            "INSERT INTO effects_grants (role, job_type) VALUES (session_user, 'pager.page')"  # who has logged in
        )
        connection.exec_driver_sql(f"SET ROLE writer_{os.getpid()}")
        connection.exec_driver_sql("INSERT INTO effects_jobs (job_type, payload) VALUES ('pager.page', '{}')")
        assert connection.exec_driver_sql(enqueued).scalar() == connection.exec_driver_sql(enqueued).scalar()
        connection.rollback()
