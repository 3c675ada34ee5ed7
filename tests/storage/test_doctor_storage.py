"""`effects doctor` uses the storage to find out whether it can be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from effects.model.advice import DoctorFinding
from effects.operate.doctor import examine
from tests.conftest import AppFactory


def storage_finding(app_factory: AppFactory, **options: str) -> DoctorFinding:
    [finding] = [candidate for candidate in examine(app_factory(**options)) if candidate.check == "storage"]
    return finding


def test_an_unused_storage_is_fine(app_factory: AppFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert storage_finding(app_factory).text == "no files stored yet"
    assert not (tmp_path / "effects-files").exists()


def test_a_working_storage_is_fine(app_factory: AppFactory, tmp_path: Path) -> None:
    finding = storage_finding(app_factory, storage_url=str(tmp_path / "files"))
    assert finding.level == "ok"
    assert "can be written, read and deleted" in finding.text


def test_a_storage_that_cannot_be_written_is_an_error_with_advice(app_factory: AppFactory, tmp_path: Path) -> None:
    (tmp_path / "files").write_text("in the way")
    finding = storage_finding(app_factory, storage_url=str(tmp_path / "files"))
    assert finding.level == "error"
    assert "a file is where a folder should be" in finding.text
    assert finding.advice is not None
