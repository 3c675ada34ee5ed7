"""Replies of real servers: what each is about, what follows from it, and why that is not what others make of it."""

from __future__ import annotations

import csv
import tomllib
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from effects_email.transport.base import Verdict
from effects_email.transport.replies.verdicts import REPLIES, reply_of, row_of, verdict_of_reply

FOLDER = Path(__file__).parents[1] / "replies"
FILES = sorted(path.stem for path in FOLDER.glob("*.csv"))
NOBODYS = ("message", "sender", "reputation", "account", "rate", "server")  # faults that are no recipient's


class Sample(NamedTuple):
    """A line of the corpus."""

    source: str
    stage: Any
    reply: str
    theirs: str
    about: str
    verdict: str
    suppress: str
    why: str

    def judged(self, stage: Any = None) -> Verdict:
        return verdict_of_reply(reply_of(stage or self.stage, int(self.reply[:3]), self.reply[4:]))


@cache
def samples(name: str) -> list[Sample]:
    with (FOLDER / f"{name}.csv").open(newline="") as file:
        return [Sample(**line) for line in csv.DictReader(file)]


def everything() -> list[Sample]:
    return [sample for name in FILES for sample in samples(name)]


@pytest.mark.parametrize("name", FILES)
def test_every_reply_has_its_verdict(name: str) -> None:
    wrong = []
    for sample in samples(name):
        verdict = sample.judged()
        ours = (verdict.about or "", verdict.kind, verdict.suppress or "")
        if ours != (sample.about, sample.verdict, sample.suppress):
            wrong.append((sample.stage, sample.reply, ours))
    assert wrong == []


def test_there_are_hundreds_of_them_and_each_has_a_source() -> None:
    corpus = everything()
    assert len(corpus) >= 650
    assert [sample for sample in corpus if not sample.source or not sample.theirs] == []
    named = " ".join(sample.source for sample in corpus)
    for source in (
        "zone-mta",
        "KumoMTA",
        "Haraka",
        "Postal",
        "Gmail",
        "Microsoft",
        "Yahoo",
        "Amazon SES",
        "Postfix",
        "Exim",
        "nodemailer/nodemailer#",
    ):
        assert source in named


@pytest.mark.parametrize("name", FILES)
def test_every_difference_has_its_reason_and_nothing_else_has_one(name: str) -> None:
    words = tomllib.loads((FOLDER / "agreement.toml").read_text())[name]
    odd = []
    for sample in samples(name):
        rules = [words[word] for word in sample.theirs.split()]
        agreed = all(
            sample.verdict in rule.get("kinds", [sample.verdict]) and sample.about in rule.get("about", [sample.about])
            for rule in rules
        )
        if agreed is bool(sample.why):
            odd.append((sample.reply, sample.theirs, sample.why))
    assert odd == []


@pytest.mark.slow
def test_faults_of_others_suppress_no_recipient_at_any_stage() -> None:
    """The same words at MAIL, RCPT, DATA and the dot suppress no address at once, and hardly ever after repeats."""
    held = [
        sample.judged(stage).suppress
        for sample in everything()
        for stage in (("mail", "rcpt", "data", "body", "dot") if sample.stage in ("rcpt", "dot") else ())
        if sample.about in NOBODYS and sample.judged(stage).suppress is not None
    ]
    assert set(held) <= {"soft"}
    assert len(held) <= 2


@pytest.mark.slow
def test_a_fault_of_our_sender_address_or_account_is_recognised_at_any_stage() -> None:
    words = ("sender", "reputation", "account", "rate")
    odd = []
    for sample in everything():
        for stage in ("mail", "rcpt", "data", "dot") if sample.stage in ("rcpt", "dot") else ():
            verdict = sample.judged(stage)
            if sample.about in words and (verdict.about not in words or verdict.suppress is not None):
                odd.append((stage, sample.reply, verdict.about))
    assert odd == []


def test_a_name_has_no_influence() -> None:
    """Whoever is called spamhaus, sender or relay is refused, or not, by what is said of them."""
    for local in (
        "blacklist",
        "sender.rejected",
        "relay.denied",
        "authentication.required",
        "rate-limit",
        "spf",
        "dmarc",
    ):
        for form in (f"<{local}@dmarc.example>", f"{local}@relay.example", f"<{local}>"):
            verdict = verdict_of_reply(reply_of("rcpt", 550, f"5.1.1 {form}: Recipient address rejected: User unknown"))
            assert (verdict.about, verdict.suppress) == ("recipient", "hard")


def test_every_row_of_words_is_there_for_some_reply() -> None:
    reached = set()
    for sample in everything():
        reply = sample.judged().reply
        assert reply is not None
        reached.add(id(row_of(reply.stage, int(sample.reply[:3]), reply.enhanced, reply.text)))
    assert [row for row in REPLIES if row.says and id(row) not in reached] == []


def test_every_row_of_words_names_where_they_are_from() -> None:
    assert [row for row in REPLIES if row.says and not row.sources] == []
