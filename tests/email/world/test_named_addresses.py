"""`Ann <ann@example.com>` wherever an address is taken."""

from __future__ import annotations

import json
from typing import Any

import pytest

from effects import Effects
from effects_email import (
    Address,
    AddressInvalid,
    find_suppressions,
    parse_address,
    send_email,
    suppress,
    suppression_log,
    unsubscribe_link,
    unsuppress,
)
from effects_email.admin import list_emails
from effects_email.message.address import recipient
from tests.cli.conftest import Run
from tests.conftest import AppFactory
from tests.email.messages.conftest import KEYS, run

FORMS: list[Any] = [
    "ann@example.com", "Ann <ann@example.com>", " ANN@Example.com ", '"Smith, Ann" <ann@example.com> ',
    "<ann@example.com>", Address("ann", "example.com", "Ann"),
]  # fmt: skip
__all__ = ["run"]


@pytest.fixture
def mail(app_factory: AppFactory) -> Effects:
    return app_factory(
        job_types=[], keys=KEYS, email_from="Shop <hello@shop.example>", smtp_url="maildir:mail",
        unsubscribe_url="https://shop.example/unsubscribe/",
    )  # fmt: skip


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_every_function_takes_every_form(mail: Effects, form: Any) -> None:
    suppress(form, why="asked", effects=mail)
    [held] = find_suppressions("ann@example.com", effects=mail)
    assert held.address is not None
    assert held.address.strip().lower() == "ann@example.com"
    assert find_suppressions(form, effects=mail) == [held]
    assert len(suppression_log(form, effects=mail)) == 1
    assert send_email(to=form, subject="s", text="t", key="k", effects=mail).suppressed
    assert [email.key for email in list_emails(mail, address=form).emails] == ["k"]
    assert unsuppress(form, effects=mail) == 1
    link = unsubscribe_link(form, "news", effects=mail)
    assert "Ann" not in link
    with pytest.raises(AddressInvalid):
        suppress("Ann <nobody>", effects=mail)


def test_every_command_takes_a_name(mail: Effects, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EFFECTS_KEYS", KEYS)
    added = run("email", "suppressions", "add", "Ann <ann@example.com>", "--reason", "asked")
    assert added.exit_code == 0, added.err
    assert run("email", "suppressions", "show", "ann@example.com").exit_code == 0
    assert json.loads(run("email", "list", "Ann <ann@example.com>", "--json").out) is not None
    assert run("email", "suppressions", "remove", '"A" <ann@example.com>', "--reason", "asked").exit_code == 0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("ann@example.com, bob@example.com", "it holds several; give one, or a list"),
        ("Ann <ann@example.com>, Bob <bob@example.com>", "it holds several"),
        ("ann@example.com;bob@example.com", "it holds several"),
        ("Ann ann@example.com", "written Ann <ann@example.com>"),
        ("Ann <ann@example.com> x", "no e-mail address"),
        ("Ann: Sales <ann@example.com>", "needs double quotes"),
        ("Ann <>", "must have an @-sign"),
    ],
)
def test_an_error_says_how_it_is_written(text: str, reason: str) -> None:
    with pytest.raises(AddressInvalid, match=reason):
        recipient(text, where="to")
    if "<" not in text:
        with pytest.raises(AddressInvalid, match=reason):
            parse_address(text)
