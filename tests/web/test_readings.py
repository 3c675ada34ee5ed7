"""Goal: many browsers cost the database little, and no page waits for a count. Method: readings that are held back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress

import pytest

from effects.web import Person, dashboard
from effects.web.database import Readings, StillCountingError
from tests.support.waiting import wait_until
from tests.web.browsing import Visitor
from tests.web.conftest import Shop, Visiting


@pytest.fixture
def readings() -> Iterator[Readings]:
    with closing(Readings(patience=0.0)) as readings:
        yield readings


class Held:
    """A reading that waits until the test lets it go on, and then gives the next number, or raises."""

    def __init__(self, error: Exception | None = None) -> None:
        self.go, self.error, self.times = threading.Event(), error, 0

    def __call__(self) -> int:
        assert self.go.wait(30)
        self.times += 1
        if self.error is not None:
            raise self.error
        return self.times


def counted(readings: Readings, read: Callable[[], int], seconds: float = 1e9) -> int:
    """As a browser has it in the end, which asks again."""
    answers: list[int] = []

    def is_there() -> bool:
        with suppress(StillCountingError):
            answers.append(readings.count("q", seconds, read))
        return bool(answers)

    wait_until(is_there)
    return answers[0]


def test_a_page_does_not_wait_for_a_count_and_later_has_it(readings: Readings) -> None:
    read = Held()
    for _ in range(3):
        with pytest.raises(StillCountingError):
            readings.count("q", 1e9, read)
    read.go.set()
    assert counted(readings, read) == 1
    assert read.times == 1


def test_an_old_count_is_shown_while_it_is_read_again(readings: Readings) -> None:
    read = Held()
    read.go.set()
    assert counted(readings, read) == 1
    read.go.clear()
    assert [readings.count("q", -1e9, read) for _ in range(3)] == [1, 1, 1]
    read.go.set()
    wait_until(lambda: readings.count("q", -1e9, read) > 1)


def test_what_was_read_before_a_person_acted_is_not_kept(readings: Readings) -> None:
    before, after = Held(), Held()
    with pytest.raises(StillCountingError):
        readings.count("q", 1e9, before)
    readings.forget()
    after.times = 10
    after.go.set()
    before.go.set()
    assert counted(readings, after) == 11


def test_an_error_of_a_count_is_told_once_and_then_it_is_read_again(readings: Readings) -> None:
    read = Held(ValueError("no"))
    with pytest.raises(StillCountingError):
        readings.count("q", 1e9, read)
    read.go.set()
    with pytest.raises(ValueError, match="no"):
        counted(readings, read)
    read.error = None
    assert counted(readings, read) == 2


def test_all_polled_questions_together_stay_within_a_share_of_the_time() -> None:
    """What is kept at the cost of each: the sum of cost / age is at most 1/125."""
    readings = Readings()
    costs = {"a": 2.0, "b": 0.01, "c": 0.3}
    kept = {question: readings.keep(question, "answer", cost) for question, cost in costs.items()}
    shares = [cost / readings.keeps(kept[question], 0.0, polled=True) for question, cost in costs.items()]
    assert sum(shares) == pytest.approx(1 / 125)
    assert readings.keeps(kept["a"], 0.0, polled=False) == 40.0
    assert readings.keeps(kept["b"], 2.0, polled=False) == 2.0


def test_a_page_that_counts_says_so_and_the_browser_asks_again(shop: Shop) -> None:
    board = dashboard(guard=lambda request: Person("ann", role="viewer"), effects=shop.app)
    with closing(board):
        board.site.readings.patience = -1.0
        visitor = Visitor(board)
        answer = visitor.send("GET", "/queues", again=False)
        assert (answer.status_code, answer.headers["refresh"]) == (202, "1")
        assert "It follows by itself" in answer.text
        assert "default" in visitor.get("/queues").text


def test_a_poll_that_brings_nothing_new_has_no_body(visiting: Visiting) -> None:
    visitor = visiting("viewer")
    live = {"x-effects-live": "1"}
    first = visitor.get("/audit", headers=live)
    assert "etag" not in visitor.get("/audit").headers
    second = visitor.get("/audit", headers={**live, "if-none-match": first.headers["etag"]})
    assert (first.status_code, second.status_code, second.content) == (200, 304, b"")
    assert "content-length" not in second.headers
    assert second.headers["x-effects-read"].endswith("Z")
    other_page = visitor.get("/workers", headers={**live, "if-none-match": first.headers["etag"]})
    assert other_page.status_code == 200
