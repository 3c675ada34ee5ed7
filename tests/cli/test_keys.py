"""`effects keys generate` prints a line that the key ring takes."""

from __future__ import annotations

import pytest

from effects.keys.encryption import KeyRing
from tests.cli.conftest import effects
from tests.support.commands import error_line


def generated() -> str:
    answer = effects("keys", "generate")
    assert answer.exit_code == 0
    name, _, value = answer.out.strip().partition("=")
    assert name == "EFFECTS_KEYS"
    return value


def test_the_first_line_seals_and_digests() -> None:
    ring = KeyRing(generated())
    [key_id] = ring.ids
    assert key_id.startswith("k20")
    assert ring.digest("x").startswith("hmac:")
    assert ring.open(ring.seal(b"s", table="t", row="1", field="f"), table="t", row="1", field="f") == b"s"


def test_a_new_key_comes_first_and_the_old_ones_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    first = generated()
    monkeypatch.setenv("EFFECTS_KEYS", first)
    second = generated()
    assert second.endswith(f",{first}")
    monkeypatch.setenv("EFFECTS_KEYS", second)
    third = generated()
    old, new = KeyRing(first), KeyRing(third)
    assert new.ids == [f"{old.ids[0]}-3", f"{old.ids[0]}-2", old.ids[0]]
    assert new.digest("x") == old.digest("x")
    assert new.open(old.seal(b"s", table="t", row="1", field="f"), table="t", row="1", field="f") == b"s"


def test_keys_that_are_set_wrongly_are_named_and_not_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EFFECTS_KEYS", "old=not-base64!")
    line = error_line(effects("keys", "generate"))
    assert "EFFECTS_KEYS, entry 1 (old)" in line
    assert "not-base64!" not in line
