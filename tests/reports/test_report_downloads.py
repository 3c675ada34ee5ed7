"""Links to files, and the app that serves them: whole, in parts, to one person, for a time, counted."""

from __future__ import annotations

import time
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from effects import Effects, KeyUnavailable, ObjectMissing
from effects.keys.encryption import generate_key
from effects_reports import (
    LinkExpired,
    LinkInvalid,
    ReportInvalid,
    ReportStateError,
    download_app,
    download_url,
    report_status,
    request_report,
)
from effects_reports.delivery import link_tokens
from effects_reports.downloads import UnsatisfiableError, asked_range, read_link
from tests.reports.conftest import Shop, content, drain
from tests.reports.served import BASE, ask
from tests.reports.shop import fill
from tests.storage.conftest import bucket_url, s3_server
from tests.support.waiting import PATIENCE_SECONDS
from tests.support.web_clients import left

__all__ = ["bucket_url", "s3_server"]

OLD, NEW = (f"{name}={generate_key()}" for name in ("old", "new"))


@pytest.fixture
def app(shop_factory: Shop) -> Effects:
    shop = shop_factory(keys=OLD)
    fill(shop, 250)
    return shop


@pytest.fixture
def run_id(app: Effects) -> str:
    run = request_report("orders", key="Aufträge 2026", effects=app).run_id
    drain(app)
    return run


@pytest.mark.slow
def test_a_link_gives_the_file(app: Effects, run_id: str) -> None:
    url = download_url(run_id, BASE, effects=app)
    assert url.startswith(f"{BASE}/{run_id}.")
    answer = ask(app, url)
    status = report_status(run_id, effects=app)
    assert answer.status_code == 200
    assert answer.content == content(app, run_id)
    assert answer.headers["content-length"] == str(status.bytes)
    assert answer.headers["etag"] == f'"{status.sha256}"'
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "private, no-store"
    assert answer.headers["content-disposition"].startswith("attachment; filename=")
    assert "filename*=UTF-8''Auftr%C3%A4ge" in answer.headers["content-disposition"]


@pytest.mark.slow
def test_downloads_are_counted(app: Effects, run_id: str) -> None:
    url = download_url(run_id, BASE, effects=app)
    ask(app, url)
    ask(app, url, headers={"range": "bytes=0-9"})
    for method, headers in [("HEAD", {}), ("GET", {"range": "bytes=10-"}), ("GET", {"range": "bytes=99999999-"})]:
        ask(app, url, method, headers)
    assert report_status(run_id, effects=app).downloads == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("range_", "start", "stop"), [("0-9", 0, 10), ("100-", 100, None), ("-7", -7, None), ("5-5", 5, 6)]
)
def test_a_part_of_the_file(app: Effects, run_id: str, range_: str, start: int, stop: int | None) -> None:
    url = download_url(run_id, BASE, effects=app)
    whole = content(app, run_id)
    answer = ask(app, url, headers={"range": f"bytes={range_}"})
    assert answer.status_code == 206
    assert answer.content == whole[start:stop]
    first = start % len(whole)
    assert answer.headers["content-range"] == f"bytes {first}-{first + len(answer.content) - 1}/{len(whole)}"


@pytest.mark.slow
def test_a_download_is_resumed_only_while_the_file_is_the_same(app: Effects, run_id: str) -> None:
    url = download_url(run_id, BASE, effects=app)
    tag = ask(app, url, "HEAD").headers["etag"]
    assert ask(app, url, headers={"range": "bytes=10-", "if-range": tag}).status_code == 206
    assert ask(app, url, headers={"range": "bytes=10-", "if-range": '"other"'}).status_code == 200
    assert ask(app, url, headers={"if-none-match": tag}).status_code == 304
    beyond = ask(app, url, headers={"range": "bytes=99999999-"})
    assert beyond.status_code == 416
    assert beyond.headers["content-range"] == f"bytes */{len(content(app, run_id))}"


@pytest.mark.slow
def test_head_has_the_headers_and_no_body(app: Effects, run_id: str) -> None:
    url = download_url(run_id, BASE, effects=app)
    answer = ask(app, url, "HEAD")
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-length"] == str(len(content(app, run_id)))
    assert ask(app, url, "POST").status_code == 405


# -- who and when ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_personal_link_opens_for_that_person_alone(app: Effects, run_id: str) -> None:
    url = download_url(run_id, BASE, principal="user 7", effects=app)
    assert "user" not in url
    assert ask(app, url, who="user 7").status_code == 200
    assert ask(app, url, who="user 8").status_code == 404
    assert ask(app, url).status_code == 404
    assert ask(app, download_url(run_id, BASE, effects=app), who="user 8").status_code == 200


@pytest.mark.slow
def test_an_empty_principal_matches_no_link(app: Effects, run_id: str) -> None:
    with pytest.raises(ReportInvalid, match="principal is empty"):
        download_url(run_id, BASE, principal="", effects=app)
    personal = download_url(run_id, BASE, principal="x", effects=app)
    token = urlsplit(personal).path.rpartition("/")[2]
    for principal in (None, ""):
        with pytest.raises(LinkInvalid):
            read_link(token, principal, effects=app)
    # As a link for "" was once signed.
    message = link_tokens.message(".".join(token.split(".")[:3]), token.split(".")[3], "p", None)
    key_id, signature = app.keys.sign(message, purpose=link_tokens.PURPOSE)
    forged = ".".join([*token.split(".")[:3], key_id, "p", link_tokens.encoded(signature)])
    for who in (None, ""):
        assert ask(app, f"{BASE}/{forged}", who=who).status_code == 404


@pytest.mark.slow
def test_a_signature_has_one_spelling(app: Effects, run_id: str) -> None:
    token = urlsplit(download_url(run_id, BASE, effects=app)).path.rpartition("/")[2]
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    good = [last for last in alphabet if _is_good(app, token[:-1] + last)]
    assert good == [token[-1]]


def _is_good(app: Effects, token: str) -> bool:
    try:
        return read_link(token, None, effects=app).run_id != ""
    except LinkInvalid:
        return False


@pytest.mark.slow
def test_an_altered_link_is_invalid(app: Effects, run_id: str) -> None:
    url = download_url(run_id, BASE, principal="x", effects=app)
    token = urlsplit(url).path.rpartition("/")[2]
    run, digest, end, key, kind, signature = token.split(".")
    later, altered = f"{int(end, 16) + 9:x}", "1" if run[-1] == "0" else "0"
    for parts in [
        (f"{run[:-1]}{altered}", digest, end, key, kind, signature), (run, digest[::-1], end, key, kind, signature),
        (run, digest, later, key, kind, signature), (run, digest, end, "none", kind, signature),
        (run, digest, end, key, "o", signature), (run, digest, end, key, kind, signature[::-1]),
        (run, digest, end, key, kind, ""), (run, digest, end, key, kind), ("",),
        (run, digest, "x", key, kind, signature),
    ]:  # fmt: skip
        with pytest.raises(LinkInvalid):
            read_link(".".join(parts), "x", effects=app)
        assert ask(app, f"{BASE}/{'.'.join(parts)}", who="x").status_code == 404
    assert read_link(token, "x", effects=app).run_id == run_id


@pytest.mark.slow
def test_a_link_is_valid_for_its_time(app: Effects, run_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    url = download_url(run_id, BASE, seconds=60, effects=app)
    now = time.time()
    monkeypatch.setattr("effects_reports.delivery.link_tokens.time.time", lambda: now + 59)
    assert ask(app, url).status_code == 200
    monkeypatch.setattr("effects_reports.delivery.link_tokens.time.time", lambda: now + 62)
    assert ask(app, url).status_code == 410
    with pytest.raises(LinkExpired):
        read_link(url.rpartition("/")[2], None, effects=app)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0, -1, 7 * 86_400 + 1, float("nan")])
def test_a_links_time_has_bounds(app: Effects, run_id: str, seconds: float) -> None:
    with pytest.raises(ReportInvalid, match=r"give 0\.001 to 604,800"):
        download_url(run_id, BASE, seconds=seconds, effects=app)


@pytest.mark.slow
def test_a_link_outlives_the_rotation_of_its_key_and_not_its_end(app: Effects, run_id: str, shop_factory: Shop) -> None:
    url = download_url(run_id, BASE, effects=app)
    assert ask(shop_factory(keys=f"{NEW},{OLD}"), url).status_code == 200
    assert ask(shop_factory(keys=NEW), url).status_code == 404
    with pytest.raises(KeyUnavailable, match="effects keys generate"):
        download_url(run_id, BASE, effects=shop_factory(keys=""))


def test_a_file_is_read_no_further_for_a_client_that_has_left(
    app: Effects, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("effects.kit.files.local.PIECE_BYTES", 100)
    scope = {
        "type": "http", "method": "GET", "headers": [], "path": urlsplit(download_url(run_id, BASE, effects=app)).path,
    }  # fmt: skip
    sent = left(download_app(effects=app), scope, 3)
    assert [message["type"].rpartition(".")[2] for message in sent] == ["start", "body", "body"]
    assert sum(len(message["body"]) for message in sent[1:]) == 200 < len(content(app, run_id))


# -- what is not there -------------------------------------------------------------------------------------------


def test_a_file_that_is_not_ready_has_no_link(app: Effects) -> None:
    run = request_report("orders", effects=app).run_id
    with pytest.raises(ReportStateError, match="not ready"):
        download_url(run, BASE, effects=app)


@pytest.mark.slow
def test_a_deleted_file_is_410(app: Effects, run_id: str) -> None:
    url = download_url(run_id, BASE, effects=app)
    app.storage.delete([str(report_status(run_id, effects=app).artifact)])
    assert ask(app, url).status_code == 410
    assert report_status(run_id, effects=app).downloads == 0


@pytest.mark.slow
def test_an_unavailable_storage_gives_a_retry_after(app: Effects, run_id: str, tmp_path: Path) -> None:
    url = download_url(run_id, BASE, effects=app)
    artifact = tmp_path / "files" / str(report_status(run_id, effects=app).artifact)
    artifact.unlink()
    artifact.symlink_to(artifact)  # a loop: no file system can read it
    answer = ask(app, url)
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "5"


@pytest.mark.slow
def test_on_object_storage_the_app_redirects_to_the_file(shop_factory: Shop, request: pytest.FixtureRequest) -> None:
    app = shop_factory(keys=OLD, storage_url=request.getfixturevalue("bucket_url"))
    fill(app, 250)
    run = request_report("orders", effects=app).run_id
    drain(app)
    answer = ask(app, download_url(run, BASE, effects=app))
    assert answer.status_code == 307
    assert "X-Amz-Expires=60&" in answer.headers["location"]
    there = httpx.get(answer.headers["location"], headers={"range": "bytes=0-5"}, timeout=PATIENCE_SECONDS)
    assert there.content == content(app, run)[:6]
    assert there.headers["content-disposition"].startswith("attachment; filename=")
    assert report_status(run, effects=app).downloads == 1
    counted = download_url(run, BASE, uses=1, effects=app)
    for _ in range(2):  # a question, which is no use of the link and opens nothing
        about = ask(app, counted, "HEAD")
        assert (about.status_code, "location" in about.headers) == (200, False)
        assert about.headers["content-length"] == str(len(content(app, run)))
    assert [ask(app, counted).status_code for _ in range(2)] == [307, 410]


# -- ranges ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "part"),
    [
        (None, None), ("", None), ("bytes=0-", (0, 100)), ("bytes=0-0", (0, 1)), ("bytes=-1", (99, 100)),
        ("bytes=-500", (0, 100)), ("bytes=50-500", (50, 100)), ("bytes=9-5", None), ("bytes=-", None),
        ("bytes=0-1,5-6", None), ("lines=0-1", None), ("bytes=a-b", None), ("bytes=٣-٤", None), ("bytes=1-2x", None),
    ],
)  # fmt: skip
def test_a_range_header(header: str | None, part: tuple[int, int] | None) -> None:
    assert asked_range(header, 100) == part


@pytest.mark.parametrize(("header", "size"), [("bytes=100-", 100), ("bytes=-0", 100), ("bytes=0-", 0), ("bytes=-5", 0)])
def test_a_range_without_bytes(header: str, size: int) -> None:
    with pytest.raises(UnsatisfiableError):
        asked_range(header, size)


# -- reading it all ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_file_that_was_altered_in_the_storage_is_noticed(app: Effects, run_id: str, tmp_path: Path) -> None:
    artifact = tmp_path / "files" / str(report_status(run_id, effects=app).artifact)
    with artifact.open("r+b") as file:
        file.write(b"x")
    with pytest.raises(ObjectMissing, match="was altered in the storage") as caught:
        content(app, run_id)
    assert caught.value.code == "storage_altered"
