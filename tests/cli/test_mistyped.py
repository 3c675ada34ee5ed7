"""Names that no command knows are refused, with the nearest one: an empty answer would look like good news."""

from __future__ import annotations

import pytest

from effects import Effects, enqueue
from tests.cli.conftest import Run
from tests.support.commands import error_line

NAMED_QUEUES = ("of_the_app",)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("jobs", "list", "--type", "webhook.delivre"), "no job type 'webhook.delivre' is registered here, and no job"),
        (("jobs", "list", "--type", "webhook.delivre"), "is it 'webhook.deliver'?"),
        (("dead", "list", "--type", "email.sent"), "is it 'email.send'?"),
        (("retry", "--type", "email.sent", "--yes"), "is it 'email.send'?"),
        (("stats", "--type", "email.sent"), "is it 'email.send'?"),
        (("cancel", "--key", "k", "--type", "email.sent"), "is it 'email.send'?"),
        (("schedules", "list", "--type", "effects.prun"), "is it 'effects.prune'?"),
        (("jobs", "list", "--queue", "webhook"), "no job and no job type has the queue 'webhook'; is it 'webhooks'?"),
        (("stats", "--queue", "email"), "is it 'emails'?"),
        (("dead", "list", "--queue", "nothing_like_it"), "no job and no job type has the queue 'nothing_like_it'"),
        (("queues", "pause", "webhook"), "is it 'webhooks'?"),
        (("queues", "resume", "webhook"), "is it 'webhooks'?"),
        (("schedules", "pause", "effects.prunne"), "is it 'effects.prune'?"),
        (("schedules", "resume", "effects.prunne"), "is it 'effects.prune'?"),
        (("schedules", "run", "effects.prunne"), "is it 'effects.prune'?"),
        (("schedules", "add", "x", "--type", "email.sent", "--cron", "0 3 * * *"), "is it 'email.send'?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_an_unknown_name_is_refused_with_the_nearest(run: Run, arguments: tuple[str, ...], words: str) -> None:
    run("init")
    assert words in error_line(run(*arguments))


def test_what_jobs_have_is_known_without_the_app(app: Effects, run: Run) -> None:
    """The command may be run without `--app`."""
    enqueue("scripted", {"name": "a"}, queue="of_the_app", effects=app)
    assert len(run("jobs", "list", "--type", "scripted", "--json").json) == 1
    assert len(run("jobs", "list", "--queue", "of_the_app", "--json").json) == 1
    assert run("dead", "list", "--type", "email.send", "--json").json == []
