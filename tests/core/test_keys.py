"""Sealed values open in their own row with their own key, and nowhere else."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from effects import ConfigurationError, KeyUnavailable
from effects.errors import SealInvalid
from effects.keys.encryption import KEY_BYTES, KeyRing, generate_key

A, B, C = (base64.b64encode(bytes([n]) * KEY_BYTES).decode() for n in (1, 2, 3))
ROW = {"table": "webhook_secrets", "row": "7", "field": "secret"}


def test_what_is_sealed_opens_in_its_row() -> None:
    ring = KeyRing(f"a={A}")
    sealed = ring.seal(b"whsec_x", **ROW)
    assert b"whsec_x" not in sealed
    assert ring.open(sealed, **ROW) == b"whsec_x"
    assert ring.seal(b"whsec_x", **ROW) != sealed


@pytest.mark.parametrize("moved", [{"table": "others"}, {"row": "8"}, {"field": "note"}])
def test_a_value_moved_to_another_row_does_not_open(moved: dict[str, str]) -> None:
    ring = KeyRing(f"a={A}")
    sealed = ring.seal(b"x", **ROW)
    with pytest.raises(KeyUnavailable, match="may hold another key under this id") as caught:
        ring.open(sealed, **{**ROW, **moved})
    assert not isinstance(caught.value, SealInvalid), "the key has proved nothing yet"
    ring.open(sealed, **ROW)
    with pytest.raises(SealInvalid, match="altered, or moved"):
        ring.open(sealed, **{**ROW, **moved})


def test_neighbouring_names_are_distinguished() -> None:
    ring = KeyRing(f"a={A}")
    sealed = ring.seal(b"x", table="ab", row="c", field="d")
    with pytest.raises(KeyUnavailable):
        ring.open(sealed, table="a", row="bc", field="d")


@pytest.mark.parametrize("place", range(60))
def test_an_altered_byte_anywhere_is_noticed(place: int) -> None:
    ring = KeyRing(f"a={A}")
    sealed = bytearray(ring.seal(b"0123456789012345678901234567", **ROW))
    sealed[place % len(sealed)] ^= 1
    with pytest.raises(KeyUnavailable):
        ring.open(bytes(sealed), **ROW)


@pytest.mark.parametrize("value", [b"", b"\x01", b"\x01\x20abc", b"plain text", b"\x02\x01a" + bytes(40)])
def test_what_was_never_sealed_is_refused(value: bytes) -> None:
    with pytest.raises(KeyUnavailable):
        KeyRing(f"a={A}").open(value, **ROW)


def test_the_newest_key_seals_and_all_open() -> None:
    old = KeyRing(f"a={A}").seal(b"x", **ROW)
    ring = KeyRing(f"b={B}, a={A}")
    assert ring.ids == ["b", "a"]
    assert ring.open(old, **ROW) == b"x"
    assert KeyRing.key_id(ring.seal(b"x", **ROW)) == "b"


def test_a_missing_key_is_named() -> None:
    sealed = KeyRing(f"a={A}").seal(b"x", **ROW)
    with pytest.raises(KeyUnavailable, match="does not hold the key 'a'"):
        KeyRing(f"b={B}").open(sealed, **ROW)


def test_another_key_under_the_same_id_is_noticed() -> None:
    sealed = KeyRing(f"a={A}").seal(b"x", **ROW)
    with pytest.raises(KeyUnavailable, match="may hold another key under this id"):
        KeyRing(f"a={B}").open(sealed, **ROW)


@pytest.mark.parametrize("text", ["", f"digest={A}"])
def test_without_a_sealing_key_nothing_is_stored_in_clear(text: str) -> None:
    with pytest.raises(KeyUnavailable, match="effects keys generate"):
        KeyRing(text).seal(b"x", **ROW)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a", "entry 1 \\(a\\): 0 bytes"),
        (f"={A}", "entry 1: give id=base64"),
        (f"a b={A}", "entry 1: give id=base64"),
        (f"{'x' * 33}={A}", "entry 1: give id=base64"),
        (f"a={A},a={B}", "entry 2: give id=base64"),
        (f"a={A},b=!!!", "entry 2 \\(b\\): the key is not base64"),
        (f"a={A},b=ключ", "entry 2 \\(b\\): the key is not base64"),
        ("a=c2hvcnQ=", "entry 1 \\(a\\): 5 bytes; a key has 32"),
    ],
)
def test_a_wrong_entry_is_named_and_never_quoted(text: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=f"EFFECTS_KEYS, {says}") as caught:
        KeyRing(text)
    assert A not in str(caught.value)
    assert "c2hvcnQ" not in str(caught.value)


def test_a_generated_key_is_valid() -> None:
    keys = {generate_key() for _ in range(3)}
    assert len(keys) == 3
    assert KeyRing(f"new={keys.pop()}").ids == ["new"]


@pytest.mark.parametrize("text", [f"a={A}", f"a={A},digest={C}"])
def test_a_digest_survives_the_rotation_of_the_sealing_keys(text: str) -> None:
    before = KeyRing(text).digest("payload")
    after = KeyRing(text.replace(f"a={A}", f"b={B},a={A}"))
    assert after.digest("payload", like=before) == before
    assert after.digest("other", like=before) != before


@pytest.mark.parametrize(("text", "form"), [("", "sha256:"), (f"digest={C}", "hmac:")])
def test_the_form_of_a_digest_is_visible_and_can_be_repeated(text: str, form: str) -> None:
    ring: Any = KeyRing(text)
    assert ring.digest("payload").startswith(form)
    plain = KeyRing("").digest("payload")
    assert KeyRing(f"digest={C}").digest("payload", like=plain) == plain
