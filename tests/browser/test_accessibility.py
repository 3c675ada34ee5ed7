"""Goal: every page can be used by everyone. Method: axe-core on pages × states × themes × widths, and own checks."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import axe_playwright_python
import pytest

from tests.browser.conftest import Opening, paths
from tests.support.sampling import is_full, sample

AXE = Path(axe_playwright_python.__file__).with_name("axe.min.js")
TAGS = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")
CASES = 12


def violations(page: Any) -> list[str]:
    """What axe finds, with the first element of each rule."""
    page.evaluate(AXE.read_text(encoding="utf-8"))
    options = json.dumps({"runOnly": {"type": "tag", "values": TAGS}, "iframes": False})
    results = page.evaluate(f"axe.run(document, {options}).then(results => results.violations)")
    return [f"{each['id']}: {each['nodes'][0]['html'][:160]}" for each in results]


def cases(shops: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [
        (state, path, scheme, width)
        for state in ("full", "empty", "error")
        for path, scheme, width in product(paths(shops, state), ("light", "dark"), (320, 1280))  # type: ignore[arg-type]
    ]


@pytest.mark.timeout(1800)
def test_axe_finds_nothing(shops: dict[str, Any], opening: Opening) -> None:
    wrong: dict[str, Any] = {}
    pages = {
        (scheme, width): opening(scheme, width, bypass=True) for scheme in ("light", "dark") for width in (320, 1280)
    }
    for state, path, scheme, width in sample(cases(shops), CASES):
        page = pages[scheme, width]
        page.goto(f"{shops[state].url}{path}")
        if problems := violations(page):
            wrong[f"{state} {path} {scheme} {width}"] = problems
    assert wrong == {}


# By how much the page, or a table in it whose last column would then be hidden, is wider than its place.
WIDER = """Math.max(...[document.documentElement, ...document.querySelectorAll(".scroll:has(.cards)")]
    .map(each => each.scrollWidth - each.clientWidth))"""


@pytest.mark.parametrize("width", [320, 1280])
def test_nothing_is_wider_than_the_screen(shops: dict[str, Any], opening: Opening, width: int) -> None:
    page = opening("light", width)
    wider = {}
    for path in paths(shops, "full"):
        page.goto(f"{shops['full'].url}{path}")
        overflow = page.evaluate(WIDER)
        if overflow > 0:
            wider[path] = overflow
    assert wider == {}


def test_no_page_without_rows_needs_scrolling(shops: dict[str, Any], opening: Opening) -> None:
    page, higher = opening("light", 1280), {}
    for path in paths(shops, "empty"):
        page.goto(f"{shops['empty'].url}{path}")
        height = page.evaluate("document.documentElement.scrollHeight")
        if height > 900 and page.locator("main table, main .findings, main iframe").count() == 0:
            higher[path] = height
    assert higher == {}


def test_targets_are_large_enough(shops: dict[str, Any], opening: Opening) -> None:
    """24 px (WCAG 2.5.8), but for links in a text and in cells of a table, and what has a label of that height."""
    page = opening("light", 320)
    small = """() => [...document.querySelectorAll("button, input, select, .button, nav a, .tabs a, summary")]
        .filter(each => each.checkVisibility() && !["hidden", "radio", "checkbox"].includes(each.type))
        .map(each => [each.outerHTML.slice(0, 80), each.getBoundingClientRect()])
        .filter(([, box]) => box.width > 1 && (box.height < 23.5 && box.width < 200))
        .map(([html, box]) => `${html} ${box.width}×${box.height}`)"""
    wrong = {}
    for path in sample(paths(shops, "full"), 8):
        page.goto(f"{shops['full'].url}{path}")
        if targets := page.evaluate(small):
            wrong[path] = targets[:3]
    assert wrong == {}


def test_focus_is_seen_and_begins_with_the_skip_link(shops: dict[str, Any], opening: Opening) -> None:
    page = opening()
    page.goto(f"{shops['full'].url}/needs")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.getElementById('main').contains(document.activeElement)")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_the_whole_matrix_is_run_by_soak(shops: dict[str, Any]) -> None:
    every = cases(shops)
    assert len(every) > 250
    assert is_full() or len(sample(every, CASES)) == CASES
