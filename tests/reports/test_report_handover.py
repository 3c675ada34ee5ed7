"""A finished file by mail: attached where it is small, else a link; links that count, and links made again."""

from __future__ import annotations

import email
import mailbox
import re
from concurrent.futures import ThreadPoolExecutor
from email.message import EmailMessage
from email.policy import default
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from effects import Effects, KeyUnavailable
from effects.keys.encryption import generate_key
from effects_reports import Notify, ReportInvalid, download_url, mail_notice, request_report, resume_report
from tests.reports.conftest import Shop, content, drain, file_ready
from tests.reports.served import BASE, ask
from tests.reports.shop import fill
from tests.support.manual_workers import rows

KEYS = f"k={generate_key()}"


@pytest.fixture
def app(shop_factory: Shop, tmp_path: Path) -> Effects:
    body = "{% if link %}Get it: {{ link }}{% else %}It is attached.{% endif %} {{ note }}\n"
    templates = file_ready(tmp_path, "{{ report }}: {{ state }}, {{ rows }} rows", body)
    shop = shop_factory(
        keys=KEYS, templates=templates, email_from="Shop <shop@example.com>",
        smtp_url=f"maildir:{tmp_path / 'mail'}",
    )  # fmt: skip
    fill(shop, 250)
    return shop


@pytest.fixture
def run_id(app: Effects) -> str:
    run = request_report("orders", effects=app).run_id
    drain(app)
    return run


def mails(folder: Path) -> list[EmailMessage]:
    """What has been sent."""
    texts = [text.as_bytes() for text in mailbox.Maildir(folder / "mail")]
    return [email.message_from_bytes(text, policy=default) for text in texts]  # type: ignore[arg-type]


def body_of(mail: EmailMessage) -> str:
    part = mail.get_body(("plain",))
    assert part is not None
    return str(part.get_content())


# -- by mail -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attached", [True, False])
def test_a_file_is_attached_below_a_size_and_above_it_is_a_link(app: Effects, tmp_path: Path, attached: bool) -> None:
    notice = mail_notice(
        "file_ready", "ann@example.com", link_to=BASE, attach_bytes_max=7_000_000 if attached else 100, link_uses=1,
        context={"note": "of {run_id}"},
    )  # fmt: skip
    run = request_report("orders", notify=notice, effects=app).run_id
    drain(app)
    [mail] = mails(tmp_path)
    assert mail["subject"] == "orders: ready, 250 rows"
    assert f"of {run}" in body_of(mail)
    files = [part.get_payload(decode=True) for part in mail.iter_attachments()]
    links = re.findall(rf"{BASE}/\S+", body_of(mail))
    if attached:
        assert (files, links) == ([content(app, run)], [])
        return
    assert (files, len(links)) == ([], 1)
    assert ask(app, links[0]).content == content(app, run)
    assert ask(app, links[0]).status_code == 410  # its one use


def test_a_file_is_attached_without_a_link_and_without_a_key_for_links(shop_factory: Shop, tmp_path: Path) -> None:
    templates = file_ready(tmp_path, "{{ rows }} rows", "{% if link %}{{ link }}{% else %}It is attached.{% endif %}\n")
    sender = {"email_from": "Shop <shop@example.com>", "smtp_url": f"maildir:{tmp_path / 'mail'}"}
    shop = shop_factory(keys=KEYS, templates=templates, **sender)
    fill(shop, 250)
    run = request_report("orders", notify=mail_notice("file_ready", "ann@example.com"), effects=shop).run_id
    drain(shop)
    [mail] = mails(tmp_path)
    assert "It is attached." in body_of(mail)
    assert [part.get_payload(decode=True) for part in mail.iter_attachments()] == [content(shop, run)]


def test_a_file_that_is_too_large_and_has_no_link_is_a_dead_letter_and_no_mail(app: Effects, tmp_path: Path) -> None:
    notice = mail_notice("file_ready", "ann@example.com", attach_bytes_max=100, context={"note": ""})
    request_report("orders", notify=notice, effects=app)
    drain(app)
    [dead] = rows(app, "job_history", "status = 'dead'")
    assert dead["job_type"] == "report.notify"
    assert "attach_bytes_max is 100, and there is no link_to" in dead["last_error"]
    assert not (tmp_path / "mail" / "new").exists() or mails(tmp_path) == []


@pytest.mark.slow
def test_each_end_of_a_run_is_one_mail(app: Effects, tmp_path: Path) -> None:
    """Failed, resumed, ready: two mails, with two keys."""
    notice = mail_notice("file_ready", "ann@example.com", link_to=BASE, on=("ready", "failed"), context={"note": ""})
    with app.engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE orders RENAME TO orders_away"))
    run = request_report("orders", notify=notice, effects=app).run_id
    drain(app)
    with app.engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE orders_away RENAME TO orders"))
    resume_report(run, effects=app)
    drain(app)
    subjects = sorted(mail["subject"] for mail in mails(tmp_path))
    assert subjects == ["orders: failed, rows", "orders: ready, 250 rows"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"payload": {"to": "{link}"}}, "give link_to"),
        ({"attach_bytes_max": 5}, "no text of the payload has {attachment}"),
        ({"link_to": "ftp://x", "payload": {"a": "{link}"}}, "no address of the web"),
        ({"link_to": BASE}, "no text of the payload has {link}"),
        ({"link_to": BASE, "payload": {"a": "{link}"}, "attach_bytes_max": 8_000_000}, "give 0 to 7,000,000"),
        ({"link_to": BASE, "payload": {"a": "{link}"}, "attach_bytes_max": 9}, "no text of the payload has {attach"),
        ({"link_to": BASE, "payload": {"a": "{link}"}, "link_seconds": 1e9}, "link_seconds is 1000000000"),
        ({"link_to": BASE, "payload": {"a": "{link}"}, "link_uses": 0}, "link_uses is 0"),
        ({"link_to": BASE, "payload": {"a": "{link}"}, "link_principal": " "}, "link_principal is empty"),
    ],
)  # fmt: skip
def test_a_notice_by_which_nobody_gets_the_file_is_refused(app: Effects, options: Any, reason: str) -> None:
    with pytest.raises(ReportInvalid, match=reason):
        request_report("orders", notify=Notify(job_type="effects.prune", **options), effects=app)


def test_without_a_key_no_link_is_promised(shop_factory: Shop) -> None:
    shop = shop_factory(keys="")
    notice = mail_notice("file_ready", "ann@example.com", link_to=BASE)
    with pytest.raises(KeyUnavailable):
        request_report("orders", notify=notice, effects=shop)


# -- links that count --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_download_that_is_resumed_is_one_use(app: Effects, run_id: str) -> None:
    url = download_url(run_id, BASE, uses=1, effects=app)
    rest = {"range": "bytes=10-"}
    assert ask(app, url, "HEAD").status_code == 200
    assert ask(app, url).status_code == 200
    assert [ask(app, url, headers=rest).status_code, ask(app, url).status_code] == [206, 410]
    with app.store.begin() as connection:
        table = app.store.tables["report_links"]
        connection.execute(sa.update(table).values(used_at=sa.null()))  # long ago
    assert ask(app, url, headers=rest).status_code == 410


@pytest.mark.slow
def test_a_part_that_nothing_came_before_is_a_use(app: Effects, run_id: str) -> None:
    url = download_url(run_id, BASE, uses=1, principal="ann", effects=app)
    assert ask(app, url, headers={"range": "bytes=1-"}, who="ben").status_code == 404
    assert ask(app, url, headers={"range": "bytes=1-"}, who="ann").status_code == 206
    assert ask(app, url, who="ann").status_code == 410


@pytest.mark.slow
def test_uses_are_counted_while_many_ask(app: Effects, run_id: str) -> None:
    url = download_url(run_id, BASE, uses=3, effects=app)
    with ThreadPoolExecutor(6) as pool:
        statuses = sorted(answer.status_code for answer in pool.map(lambda _: ask(app, url), range(8)))
    assert statuses == [200] * 3 + [410] * 5


def test_uses_have_bounds(app: Effects) -> None:
    for uses in (0, -1, True, 1_000_001):
        with pytest.raises(ReportInvalid, match="uses is"):
            download_url("rep_1", BASE, uses=uses, effects=app)
