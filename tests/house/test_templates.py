"""Goal: what every template of the dashboard must have. Method: the files themselves are read."""

from __future__ import annotations

import re

from tests.house.source import ROOT

TEMPLATES = sorted(
    (*ROOT.glob("effects/web/templates/*.html"), *ROOT.glob("*/effects_*/dashboard/templates/*.html")),
)
FOCUSABLE = re.compile(r"<(a|button|input|select|summary) ")
CONDITIONAL = re.compile(r"{% if.*?{% endif %}", re.DOTALL)
SCROLLER = re.compile(r'<div class="scroll"([^>]*)>\s*<table(.*?)</table>', re.DOTALL)


def test_a_table_that_scrolls_is_reached_by_keyboard() -> None:
    """By a link in each row, or by a stop of its own (WCAG 2.1.1); the name of the stop is the caption's."""
    scrollers = [(path, *match.groups()) for path in TEMPLATES for match in SCROLLER.finditer(path.read_text())]
    assert len(scrollers) > 20
    unreachable = [
        path.relative_to(ROOT)
        for path, attributes, table in scrollers
        if not FOCUSABLE.search(CONDITIONAL.sub("", table.split("<tbody>")[-1]))
        and not re.search(r'tabindex="0" role="region" aria-label="[^"]+"', attributes)
    ]
    assert unreachable == []
