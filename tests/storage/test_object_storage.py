"""Object storage: what is particular to it, against a server that speaks like S3."""

from __future__ import annotations

import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from effects import StorageRefused, StorageUnavailable
from effects.kit.files import Storage, open_storage
from effects.kit.files.base import StorageFull
from effects.kit.files.names import attachment
from tests.peers.serving import Serving
from tests.support.waiting import PATIENCE_SECONDS

MIB = 1024 * 1024
AWAY = "s3://tests/x?region=us-east-1&endpoint=http://127.0.0.1:1"


def unfinished_uploads(bucket_url: str) -> int:
    parts = urlsplit(bucket_url)
    endpoint = parts.query.partition("endpoint=")[2]
    return httpx.get(f"{endpoint}/{parts.netloc}?uploads", timeout=PATIENCE_SECONDS).text.count("<Upload>")


def _put(storage: Storage, size: int) -> None:
    with storage.writer("part") as writer:
        writer.write(bytes(size))
        writer.finish()


def test_giving_up_a_large_object_aborts_its_upload(bucket_url: str) -> None:
    storage = open_storage(bucket_url)
    with storage.writer("large") as writer:
        for _ in range(20):
            writer.write(bytes(2 * MIB))
    assert unfinished_uploads(bucket_url) == 0
    assert list(storage.list("")) == []


def test_credentials_and_options_are_not_in_the_url(bucket_url: str) -> None:
    assert open_storage(bucket_url).url == f"s3://{urlsplit(bucket_url).netloc}/some/prefix"


def test_a_bucket_that_is_not_there_is_refused(bucket_url: str) -> None:
    storage = open_storage(bucket_url.replace("s3://tests-", "s3://none-"))
    with pytest.raises(StorageRefused, match="the bucket does not exist: create it") as caught:
        storage.check()
    assert caught.value.code == "storage_bucket"


@pytest.mark.parametrize(("status", "code"), [
    (403, "QuotaExceeded"), (400, "XMinioAdminBucketQuotaExceeded"), (507, "InsufficientStorage"),
])  # fmt: skip
def test_a_full_bucket_is_told_from_one_that_refuses(status: int, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "tests")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "tests-secret")

    class Full(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(f"<Error><Code>{code}</Code></Error>".encode())

        def log_message(self, *words: object) -> None:
            pass

    with Serving(ThreadingHTTPServer(("127.0.0.1", 0), Full)) as server:
        storage = open_storage(f"s3://full/x?region=us-east-1&endpoint=http://127.0.0.1:{server.port}")
        assert storage.has_room(2**62)  # a bucket does not tell
        with pytest.raises(StorageFull, match=f"the bucket is full .{code}.: make room or raise its quota"):
            _put(storage, 1)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 20 * MIB])
def test_an_unavailable_server_is_retried_later(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "tests")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "tests-secret")
    storage = open_storage(AWAY)
    with pytest.raises(StorageUnavailable, match="no answer") as caught:
        _put(storage, size)
    assert "127.0.0.1" not in str(caught.value)
    with pytest.raises(StorageUnavailable):
        storage.size("part")
    with pytest.raises(StorageUnavailable):
        list(storage.list(""))


@pytest.mark.parametrize("filename", ['orders "2026".csv', "Umsätze März.csv", "orders.csv"])
def test_a_link_downloads_under_the_name(bucket_url: str, filename: str) -> None:
    storage = open_storage(bucket_url)
    with storage.writer("run/artifact", filename=filename) as writer:
        writer.write(b"a,b\n")
        writer.finish()
    link = storage.link("run/artifact", seconds=900)
    assert link is not None
    assert "X-Amz-Expires=900&" in link
    answer = httpx.get(link, timeout=PATIENCE_SECONDS)
    assert (answer.status_code, answer.content) == (200, b"a,b\n")
    assert answer.headers["Content-Disposition"] == attachment(filename)


@pytest.mark.parametrize(
    ("filename", "header"),
    [
        ("orders 2026.csv", 'attachment; filename="orders 2026.csv"'),
        ("Umsätze.csv", "attachment; filename=\"Ums_tze.csv\"; filename*=UTF-8''Ums%C3%A4tze.csv"),
        ('a"b;\r\nSet-Cookie: x', "attachment; filename=\"a_b___Set-Cookie_ x\"; "
         "filename*=UTF-8''a%22b%3B__Set-Cookie%3A%20x"),
        ("../../etc/passwd", "attachment; filename=\"__.._etc_passwd\"; filename*=UTF-8''.._.._etc_passwd"),
        ("invoice\u202efdp.exe", 'attachment; filename="invoice_fdp.exe"'),
        ("", 'attachment; filename="download"'),
    ],
)  # fmt: skip
def test_a_name_in_a_header_breaks_nothing(filename: str, header: str) -> None:
    assert attachment(filename) == header
    assert attachment(filename).isascii()


_WITHOUT = """
import sys
sys.modules["obstore"] = None
from effects import ConfigurationError, Effects
from tests.support.waiting import PATIENCE_SECONDS
app = Effects("sqlite:///x.db", storage_url="s3://bucket/prefix")
try:
    app.storage
except ConfigurationError as error:
    print(error)
"""


@pytest.mark.slow
def test_without_the_extra_the_error_names_it(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _WITHOUT], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert "pip install 'effects-toolkit[s3]'" in ran.stdout
