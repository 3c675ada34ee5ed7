"""Files in buckets of customers: there once and whole, whatever is cut, and never in place of another object."""

from __future__ import annotations

import logging
import re
import signal
import socket
import ssl
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
import trustme

from effects import ConfigurationError, Effects, EnqueueError, Fixed, KeyUnavailable, RetryPolicy, enqueue
from effects.keys.encryption import generate_key
from effects.operate.tables.audit import audit
from effects.operate.tables.dead_letters import DeadFilters, list_dead
from effects.store.effects.requeue import requeue
from effects_reports import (
    BucketCredentials,
    BucketInvalid,
    BucketNotFound,
    Notify,
    ReportInvalid,
    add_bucket,
    bucket_notice,
    list_buckets,
    remove_bucket,
    report,
    request_report,
    rotate_bucket,
)
from effects_reports.jobs.deliver import ReportDeliver
from effects_reports.transport import upload
from effects_reports.transport.address import check_object, parse_address
from tests.peers.s3_cut import CutS3, Fate
from tests.reports.conftest import ReportWorker, Shop, content, drain
from tests.reports.crash_app import make
from tests.reports.shop import REPORTS, fill, orders
from tests.storage.conftest import s3_server
from tests.support.manual_workers import rows, run_sql
from tests.support.processes import fleet
from tests.support.sampling import sample
from tests.support.sigv4 import is_signed
from tests.support.waiting import PATIENCE_SECONDS, wait_until

__all__ = ["s3_server"]

KEYS = f"k={generate_key()}"
SECRET = "a-secret/of+the=customer"
CREDENTIALS = BucketCredentials("customer", SECRET)
OWNER = httpx.Client(  # the stand-in looks at no signature, and shows strangers nothing
    headers={"authorization": "AWS4-HMAC-SHA256 Credential=owner/20260101/us-east-1/s3/aws4_request, Signature=0"},
    timeout=PATIENCE_SECONDS,
)
THEIR_NAME = "from shop/ü/latest.csv"
ANSWER = b"HTTP/1.1 %s\r\nContent-Length: %d\r\nConnection: close\r\n%s\r\n%s"


def answer(status: str, code: str = "", header: str = "") -> bytes:
    body = f"<Error><Code>{code}</Code></Error>".encode() if code else b""
    return ANSWER % (status.encode(), len(body), f"{header}\r\n".encode() if header else b"", body)


@pytest.fixture
def wire(s3_server: str) -> Iterator[CutS3]:
    with CutS3(s3_server) as proxy:
        yield proxy


@pytest.fixture
def bucket(s3_server: str) -> str:
    name = f"customer-{uuid.uuid4().hex}"
    OWNER.put(f"{s3_server}/{name}").raise_for_status()
    return name


@report("empty", key=("id",), formats=("ndjson",))
def empty_report() -> Any:
    return sa.select(orders).where(orders.c.id < 0)


@pytest.fixture
def app(shop_factory: Shop, wire: CutS3, bucket: str) -> Effects:
    shop = shop_factory(keys=KEYS, bucket_private_networks="127.0.0.0/8", reports=[*REPORTS, empty_report])
    fill(shop, 250)
    add(shop, wire, bucket)
    return shop


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of about 4 KB goes in parts of 1,000 bytes."""
    monkeypatch.setattr(upload, "PART_BYTES", 1000)
    monkeypatch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", 1)


@pytest.fixture(params=[False, True], ids=["whole", "in parts"])
def either_way(request: pytest.FixtureRequest) -> None:
    """The file goes whole, and in parts."""
    if request.param:
        request.getfixturevalue("in_parts")


ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)  # the database decides nothing here


def add(shop: Effects, wire: CutS3, bucket: str, **options: Any) -> None:
    url = f"s3://{bucket}/from shop/ü?region=eu-west-1&endpoint={wire.url}".replace(" ", "%20")
    add_bucket("acme", url, CREDENTIALS, effects=shop, **options)


def ready(app: Effects, name: str = "orders", jobs: int = 5, **options: Any) -> tuple[ReportWorker, str]:
    """A run that is ready, its delivery waiting for this worker.

    Args:
        jobs: plan, chunks and assembly.
    """
    run_id = request_report(name, notify=bucket_notice("acme", **options), effects=app).run_id
    worker = ReportWorker(app)
    for _ in range(jobs):
        worker.do_next()
    return ReportWorker(app, queue="buckets"), run_id


def objects(s3_server: str, bucket: str) -> dict[str, bytes]:
    """All that the bucket holds, by its keys, asked of the server itself."""
    listed = OWNER.get(f"{s3_server}/{bucket}?list-type=2").text
    keys = re.findall(r"<Key>(.*?)</Key>", listed)
    return {key: OWNER.get(f"{s3_server}/{bucket}/{key}").content for key in keys}


def put_theirs(s3_server: str, bucket: str) -> None:
    """Put an object that is not ours where `latest.csv` is to go."""
    OWNER.put(f"{s3_server}/{bucket}/{THEIR_NAME}", content=b"theirs").raise_for_status()


def uploads(s3_server: str, bucket: str) -> int:
    """How many multipart uploads are unfinished."""
    return OWNER.get(f"{s3_server}/{bucket}?uploads").text.count("<UploadId>")


def fates(wire: CutS3, *by_number: Fate) -> None:
    """What becomes of the requests from now on, one by one."""
    first = len(wire.requests)
    wire.judge = lambda method, target, number: dict(enumerate(by_number)).get(number - first)


@ON_SQLITE
@pytest.mark.parametrize("notice", ["none", "of another bucket", "of another run"])
def test_a_bucket_gets_only_what_was_requested_with_it(
    app: Effects, s3_server: str, bucket: str, wire: CutS3, notice: str
) -> None:
    """Whoever can write a job might pair one customer's run with another's bucket."""
    add_bucket("other", f"s3://{bucket}/other?endpoint={wire.url}", CREDENTIALS, effects=app)
    notices = {"none": (), "of another bucket": bucket_notice("other"), "of another run": ()}
    run_id = request_report("orders", key="theirs", notify=notices[notice], effects=app).run_id
    drain(app)
    payload = {"run_id": run_id, "bucket": "acme", "object": "stolen.csv"}
    if notice == "of another run":
        request_report("orders", key="own", notify=Notify(job_type="report.deliver", payload=payload), effects=app)
    else:
        enqueue("report.deliver", payload, effects=app)
    drain(app)
    assert "stolen" not in "".join(objects(s3_server, bucket))
    [letter] = list_dead(app.store, app.ledgers, DeadFilters())
    assert letter.error_code == "not_asked"


@pytest.mark.usefixtures("either_way")
def test_a_file_is_delivered_once(app: Effects, s3_server: str, bucket: str, wire: CutS3) -> None:
    run_id = request_report("orders", notify=bucket_notice("acme"), effects=app).run_id
    drain(app)
    whole = content(app, run_id)
    name = f"from shop/ü/orders/{run_id}/orders.csv"
    assert objects(s3_server, bucket) == {name: whole}
    assert uploads(s3_server, bucket) == 0
    stored = OWNER.head(f"{s3_server}/{bucket}/{name}").headers
    assert stored["content-type"].startswith("text/csv")
    assert 'filename="orders.csv"' in stored["content-disposition"]
    [effect] = [row for row in rows(app, "effect_ledger") if row["job_type"] == "report.deliver"]
    assert (effect["state"], effect["key"]) == ("done", f"deliver/{run_id}/acme")
    assert all(is_signed(sent, SECRET, "eu-west-1") for sent in wire.requests)
    assert audit(app.store, app.ledgers) == []


@ON_SQLITE
@pytest.mark.parametrize("fate", ["unanswered", "cut", "unheard"])
def test_an_answer_that_is_lost_is_looked_for(
    app: Effects, s3_server: str, bucket: str, wire: CutS3, fate: str
) -> None:
    worker, run_id = ready(app)
    fates(wire, None, fate)
    settlement = worker.do(worker.claim_one())
    if fate == "unanswered":
        assert settlement.outcome == "succeeded"
    else:  # it may still be under way to the bucket
        assert (settlement.outcome, settlement.error_code) == ("unknown", "no_answer")
        app.store.shift_clock(3600)
        assert worker.do(worker.claim_one()).outcome == "succeeded"
    assert list(objects(s3_server, bucket).values()) == [content(app, run_id)]


def test_a_repeat_finds_the_file_and_sends_nothing(app: Effects, s3_server: str, bucket: str, wire: CutS3) -> None:
    worker, run_id = ready(app)
    fates(wire, None, "unanswered", "unheard")  # and nor can it be looked for
    assert worker.do(worker.claim_one()).outcome == "unknown"
    wire.requests.clear()
    wire.judge = lambda method, target, number: None
    app.store.shift_clock(3600)
    settlement = worker.do(worker.claim_one())
    assert (settlement.outcome, settlement.detail["was_there"]) == ("succeeded", True)
    assert wire.calls() == ["GET"]
    assert list(objects(s3_server, bucket).values()) == [content(app, run_id)]


@ON_SQLITE
def test_a_repeat_finds_an_empty_file_too(app: Effects, s3_server: str, bucket: str, wire: CutS3) -> None:
    """Its first byte, which is asked for, is none; and an error has no metadata."""
    worker, run_id = ready(app, "empty", jobs=2)
    job = worker.claim_one()
    assert [worker.perform(job).detail["was_there"] for _ in range(2)] == [False, True]
    assert objects(s3_server, bucket) == {f"from shop/ü/empty/{run_id}/empty.ndjson": b""}


@ON_SQLITE
@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("number", [2, 3], ids=["begin", "part"])
def test_an_answer_without_what_it_should_hold_is_no_refusal(app: Effects, wire: CutS3, number: int) -> None:
    """It may have been cut behind its head."""
    worker, _ = ready(app)
    fates(wire, *[None] * number, ANSWER % (b"200 OK", 100, b"", b"<Init"))
    settlement = worker.do(worker.claim_one())
    assert (settlement.status, settlement.error_code) == ("failed", "bad_answer")


@ON_SQLITE
@pytest.mark.parametrize(
    "cut", [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 206 OK\r\nContent-Range: by"], ids=["line", "header"]
)
def test_an_answer_that_is_cut_in_its_head_is_no_refusal(app: Effects, wire: CutS3, cut: bytes) -> None:
    """Whose object is there stands in the head."""
    worker, _ = ready(app)
    fates(wire, cut)
    settlement = worker.do(worker.claim_one())
    assert (settlement.status, settlement.error_code) == ("failed", "bad_answer")
    assert wire.calls() == ["GET"]


@ON_SQLITE
@pytest.mark.usefixtures("in_parts")
def test_an_upload_that_was_killed_is_aborted_whatever_its_name(
    app: Effects, s3_server: str, bucket: str, wire: CutS3
) -> None:
    worker, _ = ready(app, object_name="R&D/<{filename}>")
    OWNER.post(f"{s3_server}/{bucket}/from shop/ü/R&D/<orders.csv>?uploads").raise_for_status()
    assert uploads(s3_server, bucket) == 1
    assert worker.do(worker.claim_one()).outcome == "succeeded"
    assert uploads(s3_server, bucket) == 0


@pytest.mark.slow
@ON_SQLITE
@pytest.mark.usefixtures("in_parts")
def test_an_upload_in_parts_that_is_cut_anywhere_ends_well(
    app: Effects, s3_server: str, bucket: str, wire: CutS3
) -> None:
    worker, run_id = ready(app)
    job, name = worker.claim_one(), f"from shop/ü/orders/{run_id}/orders.csv"
    outcomes = set()
    for number in range(12):  # look, list, begin, eight parts, complete
        for fate in ("unheard", "unanswered"):
            fates(wire, *[None] * number, fate)
            outcome = worker.perform(job).outcome
            outcomes.add(outcome)
            there = objects(s3_server, bucket)
            assert there in ({}, {name: content(app, run_id)})
            assert outcome in (("succeeded", "unknown") if there else ("failed", "unknown"))
            OWNER.delete(f"{s3_server}/{bucket}/{name}")
    assert outcomes == {"failed", "unknown", "succeeded"}
    wire.judge = lambda method, target, number: None
    assert worker.do(job).outcome == "succeeded"
    assert objects(s3_server, bucket) == {name: content(app, run_id)}
    assert uploads(s3_server, bucket) == 0
    assert audit(app.store, app.ledgers) == []


@ON_SQLITE
def test_another_object_is_never_replaced(app: Effects, s3_server: str, bucket: str, wire: CutS3) -> None:
    worker, _ = ready(app, object_name="latest.csv")
    put_theirs(s3_server, bucket)
    settlement = worker.do(worker.claim_one())
    assert (settlement.status, settlement.error_code) == ("dead", "object_exists")
    assert objects(s3_server, bucket) == {THEIR_NAME: b"theirs"}


@ON_SQLITE
@pytest.mark.usefixtures("either_way")
def test_another_object_that_comes_meanwhile_is_not_replaced(
    app: Effects, s3_server: str, bucket: str, wire: CutS3
) -> None:
    worker, _ = ready(app, object_name="latest.csv")

    def judge(method: str, target: str, number: int) -> None:
        if method in ("PUT", "POST"):
            put_theirs(s3_server, bucket)

    wire.judge = judge
    settlement = worker.do(worker.claim_one())
    assert (settlement.status, settlement.error_code) == ("dead", "object_exists")
    assert objects(s3_server, bucket) == {THEIR_NAME: b"theirs"}
    assert uploads(s3_server, bucket) == 0


@ON_SQLITE
@pytest.mark.usefixtures("either_way")
def test_without_conditions_an_object_that_may_not_be_seen_is_not_replaced(
    app: Effects, s3_server: str, bucket: str, wire: CutS3
) -> None:
    worker, _ = ready(app, object_name="latest.csv")
    put_theirs(s3_server, bucket)

    def judge(method: str, target: str, number: int) -> Fate:
        if method == "GET":
            return HIDDEN
        return answer("501 N", "NotImplemented") if "if-none-match" in wire.requests[number].headers else None

    wire.judge = judge
    settlement = worker.do(worker.claim_one())
    assert (settlement.status, settlement.error_code) == ("dead", "look_denied")
    assert objects(s3_server, bucket) == {THEIR_NAME: b"theirs"}
    assert uploads(s3_server, bucket) == 0


NOT_FOUND, HIDDEN = answer("404 Not Found", "NoSuchKey"), answer("403 F", "AccessDenied")
CASES = {
    "denied": ([answer("403 F", "AccessDenied"), answer("403 F", "SignatureDoesNotMatch")], "failed", "access_denied"),
    "gone": ([answer("404 N", "NoSuchBucket")], "dead", "no_such_bucket"),
    "no bucket, write only": ([answer("403 F"), answer("404 N", "NoSuchBucket")], "dead", "no_such_bucket"),
    "elsewhere": ([answer("301 M", "PermanentRedirect", "x-amz-bucket-region: eu-central-1")], "dead", "wrong_region"),
    "busy": ([NOT_FOUND, answer("503 S", "SlowDown")], "failed", "slow_down"),
    "broken": ([NOT_FOUND, answer("500 I", "InternalError"), NOT_FOUND], "failed", "http_500"),
    "no sense": ([NOT_FOUND, answer("400 B", "InvalidRequest")], "dead", "http_400"),
    "hidden": ([answer("403 F"), answer("412 P", "PreconditionFailed"), answer("403 F")], "dead", "object_exists"),
    **{
        code: ([NOT_FOUND, answer("400 B", code)], "failed", "http_400")
        for code in ("RequestTimeout", "IncompleteBody", "BadDigest", "XAmzContentSHA256Mismatch")
    },
    "no conditions": ([NOT_FOUND, answer("501 N", "NotImplemented"), NOT_FOUND], "succeeded", None),
    "no conditions, write only": ([HIDDEN, answer("501 N", "NotImplemented"), HIDDEN, HIDDEN], "dead", "look_denied"),
    "no conditions, no look": ([NOT_FOUND, answer("501 N"), answer("500 I"), answer("500 I")], "failed", "http_501"),
    "no look": ([answer("500 I")], "failed", "http_500"),
    "write only": ([answer("403 F", "AccessDenied")], "succeeded", None),
}


@ON_SQLITE
@pytest.mark.parametrize("name", CASES)
def test_what_the_bucket_answers_decides(app: Effects, wire: CutS3, name: str) -> None:
    answers, status, code = CASES[name]
    worker, _ = ready(app)
    fates(wire, *answers)
    settlement = worker.do(worker.claim_one())
    assert (settlement.status, settlement.error_code) == (status, code)
    if name == "elsewhere":
        assert "eu-central-1" in str(settlement.message)


@ON_SQLITE
def test_an_object_that_credentials_may_not_see_is_not_called_anothers_after_a_try(
    app: Effects, wire: CutS3, bucket: str
) -> None:
    worker, _ = ready(app)
    hidden = answer("403 F", "AccessDenied")
    fates(wire, hidden, "unanswered", hidden)
    assert worker.do(worker.claim_one()).outcome == "unknown"
    app.store.shift_clock(3600)
    fates(wire, hidden, None, hidden)  # the bucket itself says 412
    job = worker.claim_one()
    settlement = worker.do(job)
    assert (settlement.outcome, settlement.error_code, settlement.status) == ("unknown", "object_hidden", "dead")
    requeue(app.store, app.job_types, job.id, confirm_unknown=True, actor="ann")
    fates(wire, hidden, None, hidden)  # of a new job's first try
    settlement = worker.do(worker.claim_one())
    assert (settlement.outcome, settlement.error_code, settlement.status) == ("unknown", "object_hidden", "dead")


def test_credentials_are_sealed_rotated_and_nowhere_else(
    app: Effects, wire: CutS3, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        rotate_bucket("acme", BucketCredentials("other", "new-secret"), reason="leaked", effects=app)
        worker, _ = ready(app)
        assert worker.do(worker.claim_one()).outcome == "succeeded"
    assert all(is_signed(sent, "new-secret", "eu-west-1") for sent in wire.requests)
    with app.store.read() as connection:
        tables = sa.inspect(connection).get_table_names()
        dump = repr([connection.execute(sa.text(f"SELECT * FROM {name}")).all() for name in tables])
    for text in (dump, caplog.text, repr(CREDENTIALS), repr(list_buckets(effects=app))):
        assert SECRET not in text
        assert "new-secret" not in text
    assert [row["action"] for row in rows(app, "audit_log") if row["subject_kind"] == "bucket"] == ["add", "rotate"]


@ON_SQLITE
def test_what_does_not_fit_is_refused_at_the_call(app: Effects, shop_factory: Shop, bucket: str, wire: CutS3) -> None:
    with pytest.raises(ReportInvalid, match="no bucket 'x'"):
        request_report("orders", notify=bucket_notice("x"), effects=app)
    with pytest.raises(BucketInvalid, match="already"):
        add(app, wire, bucket)
    with pytest.raises(BucketInvalid, match=r"nothing fills in \{day\}"):
        bucket_notice("acme", object_name="{day}.csv")
    with pytest.raises(BucketNotFound):
        rotate_bucket("x", CREDENTIALS, effects=app)
    with pytest.raises(BucketNotFound):
        remove_bucket("x", effects=app)
    for text in ("", "ключ", "copied "):
        with pytest.raises(BucketInvalid, match="the credentials are empty, too long"):
            rotate_bucket("acme", BucketCredentials("customer", text), effects=app)
    payload = {"run_id": "{run_id}", "bucket": "acme", "object": "../{run_id}"}
    outside = Notify(job_type="report.deliver", payload=payload)
    with pytest.raises(ReportInvalid, match="object"):
        request_report("orders", notify=outside, effects=app)
    with pytest.raises(KeyUnavailable):
        add_bucket("y", "s3://bucket?region=eu-west-1", CREDENTIALS, effects=shop_factory())
    with pytest.raises(KeyUnavailable):
        request_report("orders", notify=bucket_notice("acme"), effects=shop_factory())
    with pytest.raises(ConfigurationError, match="EFFECTS_BUCKET_PRIVATE_NETWORKS"):
        shop_factory(bucket_private_networks="8.8.8.0/24")
    assert rows(app, "report_runs") == []


BAD_URLS = (
    "https://bucket", "s3://b", "s3://[bucket?region=eu-west-1", "s3://bucket", "s3://bucket?region=", "s3://bucket?region=eu-west-1&x=1",
    "s3://k:s@bucket?region=eu-west-1", "s3://bucket/a/../b?region=eu-west-1", "s3://bucket/a//b?region=eu-west-1",
    *(f"s3://bucket?endpoint={endpoint}" for endpoint in (
        "http://s3.example.com", "https://127.0.0.1", "https://127.1", "https://2130706433", "https://10.0.0.1",
        "https://169.254.169.254", "http://169.254.169.254", "https://[::1]", "https://[fd00:ec2::254]",
        "https://user@s3.example.com", "https://s3.example.com/path", "https://s3.example.com:25", "ftp://s3.example.com",
        "https://s3.example.com:99999", "https://", "http://8.8.8.8",
    )),
)  # fmt: skip


def test_addresses_that_lead_inside_or_nowhere_are_refused() -> None:
    for url in BAD_URLS:
        with pytest.raises(BucketInvalid) as refusal:
            parse_address(url)
        assert "example.com" not in str(refusal.value), url
    assert parse_address("s3://a.b/c?region=eu-west-1").origin == "https://s3.eu-west-1.amazonaws.com"
    for name in ("", "/a", "a/", "a//b", "a/../b", ".", "a\nb", "x" * 1025):
        with pytest.raises(EnqueueError):
            check_object(name)


@ON_SQLITE
def test_a_name_that_leads_inside_is_refused_when_it_is_sent(app: Effects, shop_factory: Shop, wire: CutS3) -> None:
    ready(app)
    run_sql(app, f"UPDATE effects_report_buckets SET url = 's3://bucket?endpoint=https://localhost:{wire.port}'")
    worker = ReportWorker(shop_factory(keys=KEYS), queue="buckets")
    settlement = worker.do(worker.claim_one())
    assert (settlement.status, settlement.error_code) == ("dead", "blocked_address")
    assert wire.requests == []


@ON_SQLITE
@pytest.mark.parametrize(
    ("requests", "outcome", "code"),
    [(0, "refused", "blocked_address"), (1, "refused", "blocked_address"), (2, "unknown", "no_answer")],
)
def test_a_name_that_leads_inside_from_now_on_says_nothing_of_what_was_sent(
    app: Effects, wire: CutS3, bucket: str, monkeypatch: pytest.MonkeyPatch, requests: int, outcome: str, code: str
) -> None:
    """The first request looks for the object, the second one makes it and stays without an answer."""
    worker, _ = ready(app)
    name = "2130706433"  # an address in a spelling that only the resolver knows
    run_sql(app, f"UPDATE effects_report_buckets SET url = 's3://{bucket}?endpoint=http://{name}:{wire.port}'")
    resolve = socket.getaddrinfo

    def lead_inside(host: str, *rest: Any, **options: Any) -> Any:
        if host != name:
            return resolve(host, *rest, **options)
        return resolve("127.0.0.1" if len(wire.requests) < requests else "169.254.169.254", *rest, **options)

    monkeypatch.setattr(socket, "getaddrinfo", lead_inside)
    fates(wire, None, "unanswered")
    settlement = worker.do(worker.claim_one())
    assert (settlement.outcome, settlement.error_code) == (outcome, code)
    assert len(wire.requests) == requests


@ON_SQLITE
def test_a_bucket_or_file_that_is_gone_is_refused(app: Effects) -> None:
    worker, _ = ready(app)
    run_sql(app, "UPDATE effects_generated_reports SET artifact = NULL")
    job = worker.claim_one()
    assert worker.perform(job).error_code == "file_gone"
    remove_bucket("acme", reason="contract ended", effects=app)
    assert worker.do(job).error_code == "no_bucket"


@ON_SQLITE
def test_a_worker_without_the_key_leaves_it_to_others(app: Effects, shop_factory: Shop) -> None:
    ready(app)
    worker = ReportWorker(shop_factory(bucket_private_networks="127.0.0.0/8"), queue="buckets")
    assert worker.do(worker.claim_one()).outcome == "snoozed"


@ON_SQLITE
def test_a_file_that_was_altered_is_not_delivered(
    app: Effects, s3_server: str, bucket: str, tmp_path: Path, in_parts: None
) -> None:
    worker, _ = ready(app)
    [path] = (tmp_path / "files").rglob("orders.csv")
    path.write_bytes(bytes(path.stat().st_size))
    assert worker.do(worker.claim_one()).error_code == "storage_altered"
    assert objects(s3_server, bucket) == {}
    assert uploads(s3_server, bucket) == 0


@ON_SQLITE
def test_the_certificate_is_verified(app: Effects, bucket: str) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    listener = socket.create_server(("127.0.0.1", 0))
    heard: list[bytes] = []

    def serve() -> None:
        for _ in range(3):
            connection, _ = listener.accept()
            try:
                with context.wrap_socket(connection, server_side=True) as secure:
                    heard.append(secure.recv(65_536))
                    secure.sendall(answer("403 F", "AccessDenied"))
            except OSError:
                connection.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    worker, _ = ready(app)
    url = f"s3://bucket?endpoint=https://127.0.0.1:{listener.getsockname()[1]}"
    run_sql(app, f"UPDATE effects_report_buckets SET url = '{url}'")
    job = worker.claim_one()
    assert worker.perform(job).error_code == "tls_failed"
    assert heard == []
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    deliver = app.job_types.get("report.deliver")
    assert isinstance(deliver, ReportDeliver)
    deliver._ssl_context = trusting
    assert worker.perform(job).error_code == "access_denied"
    assert len(heard) == 2
    thread.join(10)
    listener.close()


POINTS = {"bucket.upload_begun": 0, "bucket.part_sent": 0, "bucket.sent": 1}  # objects that are there then
KILLS = [(point, database) for point in POINTS for database in ("sqlite", "postgresql")]


@pytest.mark.slow
@pytest.mark.parametrize(("point", "database_url"), sample(KILLS, 1), indirect=["database_url"])
@pytest.mark.usefixtures("in_parts")
def test_a_kill_leaves_one_object(
    point: str, database_url: str, tmp_path: Path, wire: CutS3, bucket: str, s3_server: str
) -> None:
    options = {"keys": KEYS, "bucket_private_networks": "127.0.0.0/8", "storage_url": str(tmp_path / "files")}
    shop = make(database_url, **options)
    fill(shop, 250)
    add(shop, wire, bucket)
    shop.job_types.get("report.deliver").retry = RetryPolicy(backoff=Fixed(0.1))
    run_id = request_report("quick", notify=bucket_notice("acme"), effects=shop).run_id
    env = {f"EFFECTS_{name.upper()}": value for name, value in options.items()}
    with fleet(database_url, tmp_path) as workers:
        child = workers.worker(app="tests.reports.bucket_app:app", EFFECTS_CRASHPOINT=f"{point}:1:kill", **env)
        assert child.wait() == -signal.SIGKILL, child.output
    assert len(objects(s3_server, bucket)) == POINTS[point]
    shop.store.shift_clock(10_000)  # past the lease

    def is_over() -> bool:
        drain(shop)
        return not rows(shop, "jobs")

    wait_until(is_over)
    assert list(objects(s3_server, bucket).values()) == [content(shop, run_id)]
    assert uploads(s3_server, bucket) == 0
    assert audit(shop.store, shop.ledgers) == []
    shop.dispose()
