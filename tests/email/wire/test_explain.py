"""`effects email explain`: the table, asked by hand, without a database."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from effects.cli.context import Context
from effects.errors import ConfigurationError
from effects_email.commands.check import explain_
from effects_email.explanation import explain


def explained(*arguments: str) -> str:
    done = CliRunner().invoke(explain_, list(arguments), obj=Context())
    assert done.exit_code == 0, done.output
    return done.output


def test_a_refused_address() -> None:
    text = explained("550", "5.1.1", "--stage", "rcpt")
    assert "refused_recipient" in text
    assert "the address does not exist" in text
    assert "the address at once" in text


def test_a_lost_answer() -> None:
    text = explained("timeout", "--stage", "dot")
    assert "unknown" in text
    assert "on_unknown" in text


@pytest.mark.parametrize(("arguments", "words"), [
    (("550", "5.1.0", "--text", "<a@x.example>: Sender address rejected"),
     ("config", "our sender address", "others are tried")),
    (("550", "--text", "1.2.3.4 blacklisted see spamhaus"), ("config", "our IP address", "others are tried")),
    (("535", "5.7.8", "--stage", "auth"), ("config", "our account", "1, 2, 5, then 15 min")),
    (("554", "--stage", "dot", "--text", "delivery error: dd This user doesn't have a yahoo.com account"),
     ("refused_recipient", "this recipient", "the address at once")),
    (("553", "--text", "sorry, that domain isn't in my list of allowed rcpthosts (#5.7.1)"), ("config", "our account")),
    (("421", "4.7.28", "--stage", "mail", "--text", "unusual rate of mail"), ("throttle", "how fast we send")),
    (("450", "4.2.1", "--text", "Peak SMTP relay limit exceeded for customer"), ("throttle", "quota")),
])  # fmt: skip
def test_a_replys_subject_and_reason_are_explained(arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    text = explained(*arguments)
    assert [word for word in words if word not in text] == []
    assert "suppress" not in text or "the address at once" in words


def test_as_json() -> None:
    verdict = json.loads(explained("451", "4.7.1", "--text", "try again in 20 minutes", "--json"))
    assert (verdict["kind"], verdict["not_before_seconds"], verdict["suppress"]) == ("retry", 1200.0, None)
    assert verdict["what"] == "smtp_451_4.7.1"


@pytest.mark.parametrize("what", ["55", "099", "600", "5xx", "nonsense", "٥٥٠"])
def test_other_words_than_codes_and_faults_are_refused(what: str) -> None:
    with pytest.raises(ConfigurationError, match="none of closed, timeout"):
        explain(what)


def test_an_invalid_enhanced_code_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"such as 5\.1\.1"):
        explain("550", "5.1")
