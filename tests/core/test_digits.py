"""`whole_number`: ASCII digits, and not too many of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from effects import ConfigurationError, Settings
from effects.kit.text.unsafe import DIGITS_MAX, whole_number
from effects_webhooks import EventInvalid, explain

NO_NUMBERS = (
    "",
    " ",
    "1 ",
    "+1",
    "-1",
    "1_000",
    "1.0",
    "²",
    "٣",
    "\uff11",
    "a",
    "1\n",
    "9" * (DIGITS_MAX + 1),
    "1" * 10_000,
)


@pytest.mark.parametrize("text", NO_NUMBERS, ids=lambda text: ascii(text)[:12])
def test_another_text_is_no_number(text: str) -> None:
    assert whole_number(text) is None


@given(st.integers(0, 10**DIGITS_MAX - 1))
def test_what_it_reads_is_what_was_written(number: int) -> None:
    assert whole_number(str(number)) == number
    assert whole_number(f"0{number}", digits_max=19) == number


@given(st.text())
def test_no_text_is_an_error(text: str) -> None:
    number = whole_number(text)
    assert number is None or text.lstrip("0") in (str(number), "")


@pytest.mark.parametrize("count", ["²", "٣", "0", "-1", "", "1" * 5_000], ids=lambda text: ascii(text)[:12])
def test_threads_of_a_queue_are_a_number(count: str) -> None:
    with pytest.raises(ConfigurationError, match=r"EFFECTS_QUEUES holds 'emails=.*give name=threads"):
        Settings(database_url="sqlite:///effects.db", queues=f"emails={count}").queue_threads()


@pytest.mark.parametrize("what", ["1" * 5_000, "²", "٣٠٤"], ids=["long", "raised", "Arabic"])
def test_a_status_of_an_explanation_is_a_number(what: str) -> None:
    with pytest.raises(EventInvalid, match="is no status of 100 to 599"):
        explain(what)
