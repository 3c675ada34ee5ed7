"""Goal: in a real browser no stored text runs, loads or changes anything. Method: the corpus in every field, by SQL."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from tests.browser.conftest import Opening
from tests.support.sampling import sample
from tests.web.full_shop import FullShop, pages_of
from tests.web.hostile import CORPUS, FIELDS


@pytest.mark.timeout(1800)
def test_no_stored_text_runs(acting: tuple[FullShop, str], opening: Opening) -> None:
    shop, url = acting
    page = opening()
    page.add_init_script("window.pwn = () => { document.title = 'pwned'; alert('pwned'); }")
    for value in sample(CORPUS, 2):
        for table, columns in FIELDS.items():
            for column in columns:
                with suppress(DBAPIError), shop.app.store.engine.begin() as connection:
                    planted = text(f"UPDATE {getattr(shop.app.store.sql, table)} SET {column} = :value")
                    connection.execute(planted, {"value": value[:250]})
        for path in sample(pages_of(shop), 12):
            page.goto(f"{url}{path}")
            state: dict[str, Any] = page.evaluate(
                "({pwn: document.querySelectorAll('#pwn').length, title: document.title})"
            )
            assert (page.refused, page.foreign, state["pwn"]) == ([], [], 0), (path, value)
            assert "pwned" not in state["title"]


def test_the_html_of_a_mail_runs_and_loads_nothing(shops: dict[str, Any], opening: Opening) -> None:
    page = opening()
    page.goto(f"{shops['full'].url}/email/messages/{shops['shop'].mail}")
    page.get_by_role("button", name="Show recipient").click()
    frame = page.frame_locator("iframe.mail").first
    assert "Ann" in frame.locator("body").inner_text()
    assert page.foreign == []
    page.goto(f"{shops['full'].url}/email/templates")
    assert page.frame_locator("iframe.thumb").first.locator("body").inner_text()
