"""Goal: wherever it is mounted, the dashboard is the same. Method: one suite on a socket in each host: pages, forms
from elsewhere, actions, files, refreshes. A sample; `make soak` runs all of it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from effects.web.exchange import BODY_BYTES_MAX
from effects.web.security import HEADERS
from tests.support.sampling import sample
from tests.web.browsing import SAME_ORIGIN
from tests.web.full_shop import FullShop, fill, full_app, pages_of, partner
from tests.web.places import PLACES, Place, WebVisitor
from tests.web.rows import digest
from tests.web.shapes import Shape
from tests.web.unsafe_requests import LOOKS, UnsafeRequest, refused, unsafe_requests

PAGES_SAMPLED, REFUSALS_SAMPLED, ACTS_SAMPLED = 5, 40, 8


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[FullShop, Path]:
    """A full shop, and the folder of its file."""
    folder = tmp_path_factory.mktemp("filled")
    app = full_app(f"sqlite:///{folder / 'shop.db'}", folder)
    app.create_tables()
    with partner() as receiver:
        shop = fill(app, receiver)
    app.dispose()
    return shop, folder


@pytest.fixture
def shop(filled: tuple[FullShop, Path], tmp_path: Path) -> Iterator[FullShop]:
    """The same in a file of the test's own."""
    original, folder = filled
    shutil.copy(folder / "shop.db", tmp_path / "shop.db")
    app = full_app(f"sqlite:///{tmp_path / 'shop.db'}", folder)
    yield replace(original, app=app)
    app.dispose()


@pytest.fixture(params=[pytest.param(name, marks=() if name == "alone" else pytest.mark.slow) for name in PLACES])
def place(request: pytest.FixtureRequest, shop: FullShop) -> Iterator[Place]:
    with PLACES[request.param](shop.app) as place:
        yield place


@pytest.mark.slow
def test_the_same_everywhere(place: Place, shop: FullShop) -> None:
    ann, ben, stranger = place.visitor("ann"), place.visitor("ben"), place.visitor(None)
    requests = unsafe_requests(shop, ann)
    before = digest(shop)
    check_pages(place, shop, ann)
    check_files(ann)
    check_strangers(place, shop, stranger, requests)
    check_refusals(requests, ann, ben)
    assert digest(shop) == before
    check_actions(place, shop, ann, requests)


def check_pages(place: Place, shop: FullShop, ann: WebVisitor) -> None:
    """Each with its headers, and no address that leads out of the mount."""
    for path in sample([path for path in pages_of(shop) if "requeue" not in path], PAGES_SAMPLED):
        answer = ann.get(path)
        assert answer.status_code == 200, path
        own = [each for each in Shape(answer.text).addresses if not each.startswith("#")]
        assert [each for each in own if not each.startswith(f"{place.mount}/")] == [], path
        assert {name: answer.headers[name] for name, _ in HEADERS} == dict(HEADERS), path
        head = ann.send("HEAD", path)
        assert (head.status_code, head.content) == (200, b""), path
        assert answer.headers["cache-control"] == "no-store", path


def check_files(ann: WebVisitor) -> None:
    """Ours may be kept forever; a refresh that brings nothing has no body; what is too long is not read."""
    page = ann.get("/audit").text
    style = page.partition('rel="stylesheet" href="')[2].partition('"')[0]
    kept = ann.get(style)
    assert kept.headers["content-type"] == "text/css; charset=utf-8"
    assert "immutable" in kept.headers["cache-control"]
    live = {"x-effects-live": "1"}
    first = ann.get("/audit", headers=live)
    again = ann.get("/audit", headers={**live, "if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    long = ann.send("POST", "/settings", content=b"x" * (BODY_BYTES_MAX + 1), headers=SAME_ORIGIN)
    assert long.status_code in (400, 413)
    assert ann.get("/jobs/999999").status_code == 404
    assert ann.get("/no-such-page").status_code == 404


def check_strangers(place: Place, shop: FullShop, stranger: WebVisitor, requests: list[UnsafeRequest]) -> None:
    for path in ("/", "/jobs", f"/jobs/{shop.dead}", "/no-such-page", "/email/suppressions"):
        assert stranger.get(path).status_code == place.stranger, path
    refused_with = 404 if place.stranger == 404 else 403
    assert {request.route for request in requests if request.send(stranger) != refused_with} == set()


def check_refusals(requests: list[UnsafeRequest], ann: WebVisitor, ben: WebVisitor) -> None:
    tokens = ["", "0" * 64, "\u00e9", ben.token()]
    cases = [case for request in requests for case in refused(request, tokens)]
    wrong = [
        (request, status, answer)
        for request, status in sample(cases, REFUSALS_SAMPLED)
        if (answer := request.send(ann)) != status
    ]
    assert wrong == []


def check_actions(place: Place, shop: FullShop, ann: WebVisitor, requests: list[UnsafeRequest]) -> None:
    """Each acts once, and leads to a page below the mount; the file of a report comes whole."""
    for request in sample(requests, ACTS_SAMPLED):
        before = digest(shop)
        answer = ann.post(request.path, request.fields)
        assert answer.status_code in (200, 303), request
        assert answer.headers.get("location", f"{place.mount}/").startswith(f"{place.mount}/"), request
        assert (digest(shop) == before) is (request.route in LOOKS), request
    file = ann.post(f"/reports/runs/{shop.run}/file", {"form_token": ann.token()})
    assert file.content == b'\xef\xbb\xbfid,name\r\n1,"\'=a, b"\r\n'
    assert file.headers["content-disposition"].startswith("attachment")
