"""Templates from several folders, as the apps of a project bring them."""

from __future__ import annotations

from pathlib import Path

import pytest

from effects_email import TemplateNotFound
from effects_email.templates.folder import TemplateFolder


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_txt", ".txt").replace("_html", ".html")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_each_folder_adds_and_the_first_counts(tmp_path: Path) -> None:
    first = write(tmp_path / "a", shop__paid__subject_txt="first", shop__paid__body_txt="a", _layout_html="a")
    second = write(
        tmp_path / "b", shop__paid__subject_txt="second", shop__sent__subject_txt="sent", shop__sent__body_txt="b"
    )
    folder = TemplateFolder([first, second])
    assert folder.names() == [("shop/paid", None), ("shop/sent", None)]
    assert folder.find("shop/paid").sources["shop/paid/subject.txt"] == "first"
    assert folder.find("shop/sent").sources["shop/sent/subject.txt"] == "sent"
    with pytest.raises(TemplateNotFound, match=f"{first}, {second}"):
        folder.find("shop/none")


def test_a_changed_file_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("effects_email.templates.folder.LOOK_AGAIN_SECONDS", 0.0)
    folders = [write(tmp_path / "a", x__subject_txt="1", x__body_txt="1"), write(tmp_path / "b", y__subject_txt="2")]
    folder = TemplateFolder(folders)
    assert folder.find("x").sources["x/subject.txt"] == "1"
    write(tmp_path / "a", x__subject_txt="another")
    assert folder.find("x").sources["x/subject.txt"] == "another"
