"""Each kind of storage, empty. The object storage is moto's server, spoken to over HTTP."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from moto.server import ThreadedMotoServer

from effects.kit.files import Storage, open_storage


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The address of a server that speaks like S3."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line a request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket_url(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """EFFECTS_STORAGE_URL of a new bucket, with credentials in the environment."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "tests")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "tests-secret")
    name = f"tests-{uuid.uuid4().hex}"
    httpx.put(f"{s3_server}/{name}").raise_for_status()
    return f"s3://{name}/some/prefix?region=us-east-1&endpoint={s3_server}"


@pytest.fixture(params=["folder", "bucket"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "folder":
        return open_storage(str(tmp_path / "files"))
    return open_storage(request.getfixturevalue("bucket_url"))
