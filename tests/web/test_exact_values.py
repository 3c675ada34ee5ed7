"""Goal: a link and a form name what they are about as it is, an address in it too, and no other row by mistake.

Method: limit keys, groups and people that contain an address; each link of a row is followed, each form is sent.
"""

from __future__ import annotations

import html
import re
from urllib.parse import quote

import pytest

from effects import enqueue
from effects.operate.tables.limit_status import show
from effects.store.limits import key_limits as limit_rows
from tests.support.scripted import Script
from tests.web.browsing import Visitor, plain
from tests.web.conftest import Shop, Visiting
from tests.web.rows import audit_actions

KEY, PERSON = "team:ann@shop.example", "ann@shop.example"


@pytest.fixture
def named(shop: Shop) -> Shop:
    """With a limit key and a group that contain an address."""
    with shop.app.store.begin() as connection:
        limit_rows.set_limit(shop.app.store, connection, KEY, actor=f"web:{PERSON}", max_in_flight=4)
    for number in range(2):
        enqueue("scripted", Script(), key=f"k:{number}", limit_key=KEY, group_key=KEY, effects=shop.app)
    return shop


def links(visitor: Visitor, page: str, part: str) -> list[str]:
    """The addresses of a page that have this part."""
    return [each for each in map(html.unescape, re.findall(r'href="([^"]*)"', visitor.get(page).text)) if part in each]


def test_a_pause_is_of_the_key_that_the_row_has(named: Shop, visiting: Visiting) -> None:
    visitor = visiting("operator", personal=True, name=PERSON)
    [pause] = links(visitor, "/limits", f"/limits/pause?name={quote(KEY, safe='')}")
    assert visitor.act(pause).status_code == 303
    with named.app.store.read() as connection:
        assert show(named.app.store, connection, KEY).paused_until is not None
    assert audit_actions(named.app)[-1] == (f"web:{PERSON}", "pause")


def test_a_filter_stays_what_it_is_through_links_and_forms(named: Shop, visiting: Visiting) -> None:
    visitor = visiting("operator", personal=True)
    [jobs] = set(links(visitor, "/limits", f"limit_key={quote(KEY, safe='')}"))
    assert plain(visitor.get(jobs).text).count("scripted default") == 2
    [cancel] = links(visitor, f"{jobs}&status=queued", "/jobs/bulk?do=cancel")
    assert "2 done" in plain(visitor.act(cancel).text)


def test_what_a_colleague_did_is_one_link_away(named: Shop, visiting: Visiting) -> None:
    visitor = visiting("viewer")
    [deeds] = set(links(visitor, "/audit", f"actor={quote(f'web:{PERSON}', safe='')}"))
    assert plain(visitor.get(deeds).text).count(f"web:{PERSON}") == 1
    [subject] = links(visitor, deeds, "subject_kind=limit")
    assert "web:" in plain(visitor.get(subject).text)


def test_who_may_not_see_an_address_has_it_in_no_link(named: Shop, visiting: Visiting) -> None:
    visitor = visiting("operator")
    assert KEY not in html.unescape(visitor.get("/limits").text)
    hidden = [*links(visitor, "/limits", "/limits/pause?name=team"), *links(visitor, "/limits", "limit_key=team")]
    assert len(hidden) == 2
    for link in hidden:
        assert "%40shop" not in link.replace("%E2%80%A2%40", "")
        answer = visitor.get(link)
        assert (answer.status_code, "capability personal" in answer.text) == (400, True)
