"""Keys that are set after the first mail, or lost after it: no second message, and no mail to who is suppressed."""

from __future__ import annotations

from typing import Any

import pytest

from effects import Effects, KeyUnavailable, enqueue
from effects_email import EmailReceipt, send_templated_email, suppress
from effects_email.suppression import find_suppressions, unsuppress
from tests.email.messages.conftest import CONTEXT, KEYS, MakeShop, drain
from tests.email.messages.post import Post
from tests.support.manual_workers import row, rows

ANN = "ann@example.com"


def send(app: Effects, **options: Any) -> EmailReceipt:
    return send_templated_email("welcome", **{"to": ANN, "context": CONTEXT, "effects": app, **options})


@pytest.mark.parametrize("addressed", [{}, {"to": [ANN, "bob@example.com"], "group": True}], ids=["one", "group"])
def test_keys_added_later_make_no_second_message(make_shop: MakeShop, addressed: dict[str, Any]) -> None:
    first = send(make_shop(keys=""), event_id="signup:1", **addressed)
    keyed = make_shop()
    again = send(keyed, event_id="signup:1", **addressed)
    assert (again.existing, again.key, again.job_id) == (True, first.key, first.job_id)
    assert len(rows(keyed, "jobs")) == len(rows(keyed, "sent_emails")) == 1
    later = send(keyed, event_id="signup:2", **addressed)
    assert (later.existing, send(keyed, event_id="signup:2", **addressed).job_id) == (False, later.job_id)


def test_without_its_key_an_older_message_is_not_sent_again(make_shop: MakeShop) -> None:
    send(make_shop(), event_id="signup:1")
    plain = make_shop(keys="")
    with pytest.raises(KeyUnavailable, match=r"whether this message was sent before .* key named digest"):
        send(plain, event_id="signup:1")
    assert len(rows(plain, "sent_emails")) == 1
    assert not send(plain, key="own").existing  # nothing derived: its key is known


def test_without_the_key_a_recipient_that_may_be_suppressed_gets_nothing(make_shop: MakeShop, post: Post) -> None:
    keyed, plain = make_shop(), make_shop(keys="")
    waiting = send(plain, key="before").job_id
    suppress(ANN, effects=keyed)
    with pytest.raises(KeyUnavailable, match=r"whether an address is suppressed .* key named digest"):
        send(plain, key="after")
    for read in (find_suppressions, unsuppress):
        with pytest.raises(KeyUnavailable, match="key named digest"):
            read(ANN, effects=plain)
    assert drain(plain) == {"snoozed": 1}
    assert not post.outgoing
    assert row(plain, "jobs")["error_code"] == "waits_for_operator"
    assert (row(plain, "jobs")["id"], len(rows(plain, "sent_emails"))) == (waiting, 1)


def test_a_reason_to_write_despite_suppression_needs_no_list(make_shop: MakeShop, post: Post) -> None:
    keyed, plain = make_shop(), make_shop(keys="")
    send(plain, key="recall", despite_suppression="a recall by law")
    suppress(ANN, effects=keyed)
    assert drain(plain) == {"succeeded": 1}
    assert len(post.outgoing) == 1


def test_a_composed_message_waits_for_the_key(make_shop: MakeShop) -> None:
    keyed, undigested = make_shop(), make_shop(keys=KEYS.partition(",")[0])
    suppress(ANN, effects=keyed)
    payload = {"template": "welcome", "to": ANN, "context": CONTEXT, "key": "k"}
    enqueue("email.compose", payload, effects=keyed)
    assert drain(undigested) == {"snoozed": 1}
    assert "whether an address is suppressed" in row(undigested, "job_attempts")["message"]
    assert rows(undigested, "sent_emails") == []
