"""Filters in addresses have the names of the commands' options, and a name that a page does not know is refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from urllib.parse import parse_qsl, urlsplit

import click
import pytest

from effects.cli.main import cli
from effects.web import Dashboard, Person, dashboard
from tests.web.browsing import Visitor, plain
from tests.web.full_shop import FullShop, pages_of

COMMANDS = {
    "/jobs": "jobs list", "/needs": "dead list", "/audit": "log", "/limits": "limits list", "/bulk": "bulk list",
    "/numbers": "stats", "/email/messages": "email list", "/email/suppressions": "email suppressions list",
    "/webhooks": "webhooks endpoints list", "/webhooks/deliveries": "webhooks deliveries",
    "/webhooks/events": "webhooks events", "/reports": "reports list",
}  # fmt: skip
# What no command selects by: a screen's own two-way switch, and the kind that `--job` implies.
OWN = {"effect", "subject_kind"}


@pytest.fixture
def visitor(full: FullShop) -> Iterator[Visitor]:
    board: Dashboard = dashboard(guard=lambda request: Person("ann", role="admin", personal=True), effects=full.app)
    yield Visitor(board)
    board.close()


def options_of(path: str) -> set[str]:
    command: click.Command = cli
    for word in path.split():
        assert isinstance(command, click.Group)
        child = command.get_command(click.Context(command), word)
        assert child is not None
        command = child
    return {option.lstrip("-").replace("-", "_") for each in command.params for option in each.opts}


def filters_in(page: str, path: str) -> set[str]:
    """The names in the page's links to itself, and in its form."""
    links = [urlsplit(unescape(link)) for link in re.findall(r'href="([^"]*)"', page)]
    form = re.search(r'<form method="get"[^>]*class="filter-form">(.*?)</form>', page, re.DOTALL)
    fields = re.findall(r' name="([^"]+)"', form[1]) if form is not None else []
    return {name for link in links if link.path == path for name, _ in parse_qsl(link.query)} | set(fields)


def test_the_names_are_those_of_the_command(full: FullShop, visitor: Visitor) -> None:
    for path, command in COMMANDS.items():
        names = filters_in(visitor.get(path).text, path) - OWN
        assert names <= options_of(command), path
        assert names or path in ("/bulk", "/webhooks/events"), path


def test_an_unknown_name_is_refused_on_every_page(full: FullShop, visitor: Visitor) -> None:
    for path in pages_of(full):
        answer = visitor.get(f"{path}{'&' if '?' in path else '?'}nonsense=1")
        assert (answer.status_code, "has no filter 'nonsense'" in unescape(answer.text)) == (400, True), path


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/jobs?status=queued&typ=x", "type"), ("/jobs/bulk?do=cancel&status=queued&job_type=x", "type"),
        ("/jobs?limit-key=x", "limit_key"), ("/needs/bulk?do=requeue&effect=not_done&cod=x", "code"),
        ("/webhooks/deliveries?endpoint_id=x", "endpoint"), ("/reports?statuss=ready", "status"),
        ("/numbers?newr=1h", "newer"), ("/email/messages?fat=bounced", "fate"),
    ],
)  # fmt: skip
def test_a_mistyped_name_is_answered_by_the_nearest(path: str, meant: str, visitor: Visitor) -> None:
    answer = visitor.get(path)
    assert answer.status_code == 400
    assert f"is it '{meant}'?" in plain(unescape(answer.text))


def test_each_link_of_each_page_is_taken(full: FullShop, visitor: Visitor) -> None:
    """No page of ours leads to a refused address."""
    links = {
        unescape(link)
        for path in pages_of(full)
        for link in re.findall(r'href="(/[^"]*\?[^"]*)"', visitor.get(path).text)
    }
    assert len(links) > 40
    assert {link: code for link in links if (code := visitor.get(link).status_code) == 400} == {}
