"""Archives with a password: what other programs read of them, byte for byte, and what one without the password sees."""

from __future__ import annotations

import io
import os
import random
import subprocess
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from effects_reports.formats.aes_zip import AesZip
from tests.formats.rows import Memory
from tests.support.aes_archives import opened
from tests.support.needs import program

PASSWORD = 'correct horse; battery "staple" \'$x` '
SALT = bytes(range(16))
NAMES = ("orders.csv", "ä ö 日本.csv", "a" * 200 + ".csv", "-rf.csv", "x'\"&;.csv")


def archive(pieces: Sequence[bytes], name: str = "orders.csv", salt: bytes = SALT) -> bytes:
    memory = Memory()
    out = AesZip(memory, lambda _: pieces, name, PASSWORD, salt)  # type: ignore[arg-type]
    for piece in pieces:
        out.write(piece)
    out.finish()
    return bytes(memory.data)


@pytest.fixture(scope="module")
def contents() -> list[bytes]:
    noise = random.Random(1)
    return [b"", b"a", b"a" * 65_536, noise.randbytes(65_535), noise.randbytes(65_537), b"1,ann\r\n" * 100_000]


def test_another_reader_reads_what_was_written(contents: list[bytes]) -> None:
    for content in contents:
        assert opened(archive([content]), PASSWORD) == {"orders.csv": content}


def test_names_are_kept(contents: list[bytes]) -> None:
    for name in NAMES:
        assert opened(archive([b"1"], name), PASSWORD) == {name: b"1"}


def test_7_zip_reads_it(contents: list[bytes], tmp_path: Path) -> None:
    seven_zip = program("7zz")
    for number, content in enumerate(contents):
        path = tmp_path / f"{number}.zip"
        path.write_bytes(archive([content], NAMES[number % 2]))
        read = subprocess.run([seven_zip, "x", "-so", f"-p{PASSWORD}", path], capture_output=True, check=True)
        assert read.stdout == content
        listed = subprocess.run([seven_zip, "l", "-slt", path], capture_output=True, check=True, text=True)
        assert "Method = AES-256 Deflate" in listed.stdout
        wrong = subprocess.run([seven_zip, "t", "-pwrong", path], capture_output=True, check=False)
        assert wrong.returncode != 0


def test_the_pieces_change_nothing_and_the_salt_all() -> None:
    whole = os.urandom(200_000)
    cut = [whole[start : start + 777] for start in range(0, len(whole), 777)]
    assert archive(cut) == archive([whole])
    with_another_salt = archive([whole], salt=bytes(16))
    assert with_another_salt[200:1200] != archive([whole])[200:1200]


def test_a_wrong_password_and_none_read_nothing() -> None:
    data = archive([b"secret of the customer"])
    for password in ("wrong", ""):
        with pytest.raises(RuntimeError, match="password"):
            opened(data, password)
    assert b"secret of the customer" not in data
    with zipfile.ZipFile(io.BytesIO(data)) as plain, pytest.raises((RuntimeError, NotImplementedError)):
        plain.read("orders.csv")


def test_a_changed_byte_is_seen() -> None:
    data = bytearray(archive([os.urandom(1000)]))
    data[300] ^= 1
    with pytest.raises((zipfile.BadZipFile, Exception), match=r"(?i)bad|hmac|corrupt|invalid|crc"):
        opened(bytes(data), PASSWORD)


def test_sizes_past_4_gib_have_64_bits() -> None:
    memory = Memory()
    out = AesZip(memory, lambda _: (), "orders.csv", PASSWORD, SALT)  # type: ignore[arg-type]
    out.write(b"x")
    out.plain += 5 * 2**30  # as if they had been written
    out.finish()
    with zipfile.ZipFile(io.BytesIO(memory.data)) as read:
        [entry] = read.infolist()
    assert (entry.file_size, entry.header_offset) == (5 * 2**30 + 1, 0)
