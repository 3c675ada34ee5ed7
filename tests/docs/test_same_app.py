"""The app of `benchmarks/same-app.md`: ours is short, and does what it says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from sqlalchemy import text

from benchmarks.first_program import programs
from benchmarks.same_app import DOCUMENT
from effects.testing import Toolkit

PRINTER = "labels = []\nprint_label = labels.append\nwrite_report = labels.append\n"


def test_an_order_its_mail_and_its_label_are_14_lines_and_3_commands() -> None:
    ours, *peers = programs(DOCUMENT)
    assert (ours.name, ours.server, len(peers)) == ("effects", "none", 4)
    assert sum(1 for line in ours.source.partition("# nightly")[0].splitlines() if line.strip()) <= 14
    assert len(ours.commands) <= 3


def test_it_buys_and_rolls_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop.py").write_text(programs(DOCUMENT)[0].source.replace("SMTP_PORT", "2525"))
    (tmp_path / "printer.py").write_text(PRINTER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    try:
        import printer  # type: ignore[import-not-found]  # noqa: PLC0415 - written above
        import shop  # type: ignore[import-not-found]  # noqa: PLC0415

        with Toolkit(shop.app) as toolkit:
            with toolkit.app.engine.begin() as connection:
                connection.execute(text("CREATE TABLE orders (id integer PRIMARY KEY)"))
            shop.buy(1)
            with pytest.raises(Exception, match="UNIQUE"):
                shop.buy(1)
            toolkit.drain()
            assert printer.labels == [1]
            assert [mail.subject for mail in toolkit.emails] == ["Order 1"]
        shop.app.dispose()
    finally:
        for name in ("shop", "printer"):
            sys.modules.pop(name, None)
