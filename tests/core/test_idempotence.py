"""`write_once`: a known key with the same content is a duplicate, with other content a conflict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest
from sqlalchemy import create_engine, text

from effects import IdempotencyConflict
from effects.extend.ledger import NO_DIGEST, IdempotentWriter, KeyHolder, write_once
from effects.keys.encryption import KeyRing, generate_key

KEYS = KeyRing(f"digest={generate_key()}")


class Note(NamedTuple):
    key: str
    content: str = "hello"


class NoteWriter(IdempotentWriter[Note, str]):
    """Keeps digests by key. `vanishing` keys are taken at the first insert, and gone when it is asked who has them."""

    def __init__(self, digests: dict[str, str | None] | None = None, vanishing: set[str] | None = None) -> None:
        self.digests = digests or {}
        self.vanishing = vanishing or set()
        self.calls: list[tuple[str, list[str]]] = []

    def insert(self, requests: Sequence[Note]) -> list[str | None]:
        self.calls.append(("insert", [note.key for note in requests]))
        return [self._insert(note) for note in requests]

    def _insert(self, note: Note) -> str | None:
        if note.key in self.digests or note.key in self.vanishing:
            return None
        self.digests[note.key] = KEYS.digest(note.content)
        return f"new {note.key}"

    def holders(self, requests: Sequence[Note]) -> list[KeyHolder[str] | None]:
        self.calls.append(("holders", [note.key for note in requests]))
        gone, self.vanishing = self.vanishing, set()
        return [None if note.key in gone else self._holder(note.key) for note in requests]

    def _holder(self, key: str) -> KeyHolder[str]:
        return KeyHolder(
            receipt=f"old {key}", digest=self.digests[key], key=f"the key {key!r}", owner="job 5", job_id=5
        )

    def content(self, request: Note) -> str:
        return request.content


def write(writer: NoteWriter, *notes: Note, batch: int | None = None, keys: KeyRing = KEYS) -> list[str]:
    engine = create_engine("sqlite://")
    try:
        with engine.begin() as connection:
            return write_once(keys, connection, notes, writer, batch=batch)
    finally:
        engine.dispose()


def test_new_keys_are_written_and_existing_ones_return_their_holders_in_order() -> None:
    writer = NoteWriter({"b": KEYS.digest("hello")})
    assert write(writer, Note("a"), Note("b"), Note("c")) == ["new a", "old b", "new c"]
    assert writer.calls == [("insert", ["a", "b", "c"]), ("holders", ["b"])]


def test_no_holder_is_looked_for_when_every_key_is_free() -> None:
    writer = NoteWriter()
    write(writer, Note("a"), Note("b"))
    assert writer.calls == [("insert", ["a", "b"])]


def test_a_key_twice_in_one_call_is_written_once() -> None:
    assert write(NoteWriter(), Note("a"), Note("a")) == ["new a", "old a"]


def test_content_that_cannot_be_compared_is_not_called_other_content() -> None:
    """Written with a digest key, repeated without; the other way round it can be told."""
    with pytest.raises(IdempotencyConflict, match="cannot be told without the key named digest that EFFECTS_KEYS had"):
        write(NoteWriter({"k": KEYS.digest("hello")}), Note("k"), keys=KeyRing(""))
    assert write(NoteWriter({"k": KeyRing("").digest("hello")}), Note("k")) == ["old k"]


def test_other_content_is_a_conflict_that_names_key_and_holder() -> None:
    with pytest.raises(IdempotencyConflict, match="the key 'a' belongs to job 5, which has other content") as caught:
        write(NoteWriter({"a": KEYS.digest("hello")}), Note("a", "secret"))
    assert caught.value.job_id == 5
    assert "secret" not in str(caught.value)


def test_a_holder_with_the_digest_of_an_earlier_key_ring_is_compared_in_its_form() -> None:
    assert write(NoteWriter({"a": KeyRing("").digest("hello")}), Note("a")) == ["old a"]


def test_a_holder_without_a_digest_counts_as_the_same() -> None:
    assert write(NoteWriter({"a": None}), Note("a", "anything")) == ["old a"]


@pytest.mark.parametrize("content", ["", "hello"])
def test_a_holder_that_equals_no_content_is_a_conflict(content: str) -> None:
    with pytest.raises(IdempotencyConflict):
        write(NoteWriter({"a": NO_DIGEST}), Note("a", content))


def test_a_key_whose_holder_is_deleted_meanwhile_is_free() -> None:
    writer = NoteWriter({"b": KEYS.digest("hello")}, vanishing={"a"})
    assert write(writer, Note("a"), Note("b")) == ["new a", "old b"]
    assert writer.calls == [("insert", ["a", "b"]), ("holders", ["a", "b"]), ("insert", ["a"])]


def test_batches_are_given_one_after_another() -> None:
    writer = NoteWriter()
    assert write(writer, Note("a"), Note("b"), Note("a"), batch=2) == ["new a", "new b", "old a"]
    assert writer.calls == [("insert", ["a", "b"]), ("insert", ["a"]), ("holders", ["a"])]


def test_a_conflict_rolls_the_whole_call_back_and_not_the_callers_work() -> None:
    class TableWriter(NoteWriter):
        def _insert(self, note: Note) -> str | None:
            connection.execute(text("INSERT INTO notes VALUES (:key)"), {"key": note.key})
            return super()._insert(note)

    engine = create_engine("sqlite://")
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE notes (key text)"))
        connection.execute(text("INSERT INTO notes VALUES ('before')"))
        with pytest.raises(IdempotencyConflict):
            write_once(KEYS, connection, [Note("a"), Note("b"), Note("a", "other")], TableWriter(), batch=2)
        assert connection.execute(text("SELECT key FROM notes")).scalars().all() == ["before"]
    engine.dispose()
