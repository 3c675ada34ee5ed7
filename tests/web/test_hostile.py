"""Goal: no stored text becomes markup. Method: the corpus in every text column, by plain SQL; every page is parsed, and
has no element, attribute or address that a page with harmless texts does not have.
"""

from __future__ import annotations

from contextlib import suppress

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from effects.model.limits import FOREVER_SECONDS
from effects.store.limits import key_limits as limit_rows
from effects.store.limits import queue_pauses
from tests.support.sampling import sample
from tests.web.conftest import Shop, Visiting
from tests.web.hostile import CORPUS, FIELDS
from tests.web.shapes import Shape

LISTS = ("/", "/needs", "/jobs", "/queues", "/workers", "/schedules", "/limits", "/audit")
HARMLESS = "harmless"


def plant(shop: Shop, value: str) -> int:
    """Write the text into each column of each row; how many took it (keys are unique, and bounded)."""
    store, planted = shop.app.store, 0
    for table, columns in FIELDS.items():
        for column in columns:
            name = getattr(store.sql, table)
            with suppress(DBAPIError), store.engine.begin() as connection:
                connection.execute(text(f"UPDATE {name} SET {column} = :value"), {"value": value[:250]})
                planted += 1
    return planted


@pytest.fixture
def full(shop: Shop) -> Shop:
    """With a pause of each kind, so that every list has a row with a reason."""
    store = shop.app.store
    with store.begin() as connection:
        queue_pauses.pause(store, connection, "default", actor="cli:ann", reason="r")
        limit_rows.pause(store, connection, "smtp", actor="cli:ann", reason="r", seconds=FOREVER_SECONDS)
    return shop


@pytest.mark.slow
def test_no_text_of_a_row_becomes_markup(full: Shop, visiting: Visiting) -> None:
    pages = [*LISTS, *(f"/jobs/{job}" for job in (full.dead, full.unknown, full.done, full.queued))]
    assert plant(full, HARMLESS) > 20
    visitor = visiting("operator")
    usual = {element for page in pages for element in Shape(visitor.get(page).text).elements}
    for value in sample(CORPUS, 12):
        plant(full, value)
        visitor.app.site.readings.forget()
        for page in pages:
            answer = visitor.get(page)
            assert answer.status_code == 200, (page, value)
            shape = Shape(answer.text)
            assert shape.elements.keys() - usual == set(), (page, value)
            assert [each for each in shape.addresses if not each.startswith(("/", "#"))] == [], (page, value)


@pytest.mark.slow
def test_no_field_of_a_query_becomes_markup(shop: Shop, visiting: Visiting) -> None:
    visitor = visiting("operator")
    jobs, dead = ("type", "queue", "code", "worker", "status", "newer"), ("type", "queue", "code", "endpoint")
    pages = {
        "/": ("newer",), "/jobs": (*jobs, "did"), "/needs": (*dead, "did"), "/audit": ("actor", "action", "subject"),
        "/queues/pause": ("name",),
    }  # fmt: skip
    for page, names in pages.items():
        expected = Shape(visitor.get(page, params=dict.fromkeys(names, HARMLESS)).text)
        for value in CORPUS:
            for fields in (dict.fromkeys(names, value[:250]), {value[:250]: "x"}):
                answer = visitor.get(page, params=fields)
                assert answer.status_code in (200, 400, 422), (page, value)
                if answer.status_code == 200:
                    assert Shape(answer.text).elements == expected.elements, (page, value)


def test_what_was_written_is_shown_as_it_is(full: Shop, visiting: Visiting) -> None:
    visitor = visiting("operator")
    value = "<img src=x onerror=pwn()> & \"quotes\" 'too'"
    plant(full, value)
    assert "&lt;img src=x onerror=pwn()&gt; &amp; &#34;quotes&#34; &#39;too&#39;" in visitor.get("/needs").text


def test_the_templates_leave_no_door_open() -> None:
    from importlib.resources import files  # noqa: PLC0415 - this test alone

    folder = files("effects.web") / "templates"
    texts = {file.name: file.read_text(encoding="utf-8") for file in folder.iterdir()}
    assert len(texts) > 10
    for word in ("|safe", "style=", "onclick", "onload", "<style", "javascript:", "autoescape"):
        assert [name for name, template in texts.items() if word in template] == [], word
