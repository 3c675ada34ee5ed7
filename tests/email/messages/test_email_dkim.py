"""Which messages of an app are signed: at every try with the same bytes, and an unusable key is seen at the start."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from effects import ConfigurationError, Effects
from effects.worker import Worker
from effects_email import EmailReceipt, EmailSettings, send_templated_email
from effects_email.admin import get_email, send_test_email
from effects_email.state import state_of
from tests.email.dkim.keys import both, ed25519, inline, pem, published, rsa, setting, verdicts, write_pem
from tests.email.messages.conftest import CONTEXT, MakeShop, drain
from tests.email.messages.post import Post, verdict
from tests.email.messages.sending import sent
from tests.support.manual_workers import row

NAME = "s1._domainkey.shop.example"
SECRET = inline(ed25519())


def send(app: Effects, template: str = "welcome", **options: Any) -> EmailReceipt:
    return send_templated_email(template, to="ann@example.com", context=CONTEXT, effects=app, **options)


def moved(app: Effects, dkim_keys: str) -> None:
    """The same app after a deploy with another setting."""
    object.__setattr__(state_of(app).settings, "dkim_keys", dkim_keys)
    vars(state_of(app)).pop("signer", None)


def selectors(data: bytes) -> list[str]:
    return re.findall(r"s=([^;]+);", data.partition(b"\r\nFrom:")[0].decode())


def test_what_leaves_is_signed_with_each_algorithm(make_shop: MakeShop, post: Post) -> None:
    shop = make_shop(dkim_keys=both())
    send(shop)
    drain(shop)
    [data] = post.bytes
    assert verdicts(data, published(both())) == [True, True]


def test_a_try_after_a_lost_answer_has_the_same_bytes_although_the_key_was_replaced(
    make_shop: MakeShop, post: Post
) -> None:
    shop = make_shop(dkim_keys=both())
    post.moves = [verdict("unknown"), verdict("accepted")]
    send(shop)
    drain(shop)
    moved(shop, f"{both()},{setting(s2027=rsa(2))};from=2020-01-01")
    shop.store.shift_clock(2000)
    drain(shop)
    first, second = post.bytes
    assert first == second
    assert sent(shop)["state"] == "done"
    send(shop)
    drain(shop)
    assert selectors(post.bytes[-1]) == ["ed2026", "s2027"]


def test_a_message_that_left_unsigned_is_not_signed_when_it_is_repeated(make_shop: MakeShop, post: Post) -> None:
    shop = make_shop()
    post.moves = [verdict("unknown"), verdict("accepted")]
    send(shop)
    drain(shop)
    moved(shop, both())
    shop.store.shift_clock(2000)
    drain(shop)
    first, second = post.bytes
    assert first == second
    assert selectors(first) == []


def test_a_message_whose_key_is_gone_is_not_sent_with_other_bytes(make_shop: MakeShop, post: Post) -> None:
    shop = make_shop(dkim_keys=setting(s2026=rsa()))
    post.moves = [verdict("unknown"), verdict("accepted")]
    receipt = send(shop)
    drain(shop)
    moved(shop, setting(s2027=rsa(2)))
    shop.store.shift_clock(2000)
    drain(shop)
    assert len(post.bytes) == 1
    assert get_email(shop, receipt.key).state == "unknown"
    assert row(shop, "job_history")["error_code"] == "content_changed"


def test_another_sender_of_a_template_is_signed_by_its_own_domain(make_shop: MakeShop, post: Post) -> None:
    shop = make_shop(dkim_keys=setting(s1=ed25519()) + "," + setting("other.example", s9=ed25519(2)))
    for sender in ("a@other.example", "a@third.example"):
        send(shop, sender=sender)
    drain(shop)
    assert sorted(selectors(data) for data in post.bytes) == [[], ["s9"]]


def test_a_test_message_into_a_maildir_is_signed(make_shop: MakeShop, tmp_path: Path) -> None:
    shop = make_shop(dkim_keys=both(), email_transports={"files": f"maildir:{tmp_path}/mail"})
    send_test_email(shop, "ann@example.com", "files")
    [file] = (tmp_path / "mail" / "new").iterdir()
    stored = file.read_bytes()
    assert verdicts(stored[stored.index(b"DKIM-Signature:") :], published(both())) == [True, True]


# -- the setting -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("shop.example=/x.pem", "entry 1: give the name of its DNS record"),
        (f"{NAME}", "entry 1: give the name of its DNS record"),
        (f"{NAME}=", "entry 1: no file and no key behind the ="),
        (f"{NAME}={SECRET},s2._domainkey.shop.example=x;until=2027", "entry 2: behind a ; comes from="),
        (f"{NAME}={SECRET};from=soon", "entry 1: from= is no moment"),
        (f"{NAME}={SECRET},{NAME}=x", f"names {NAME} twice"),
        (f"s1._domainkey.other.example={SECRET}", "has no key for shop.example, the domain of EFFECTS_EMAIL_FROM"),
    ],
    ids=["name", "no-value", "empty", "option", "moment", "twice", "domain"],
)
def test_a_malformed_setting_is_refused_when_the_app_is_made(text: str, says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        EmailSettings(email_from="a@shop.example", dkim_keys=text)
    assert says in str(caught.value)
    assert SECRET not in str(caught.value)


def _unusable(folder: Path) -> dict[str, tuple[str, str]]:
    weak, text = write_pem(folder, rsa(3, 512 + 512)), folder / "text.pem"
    text.write_text("no key")
    return {
        "missing": (f"{NAME}={folder}/none.pem", "cannot be read: No such file"),
        "text": (f"{NAME}={text}", "is no private key in PEM or DER"),
        "base64": (f"{NAME}=base64:%%", "is not base64"),
        "twice": (f"{NAME}={SECRET},s2._domainkey.shop.example={inline(ed25519(2))}", "from the same moment on"),
        "usable": (f"{NAME}={weak}", ""),
    }


@pytest.mark.parametrize("case", ["missing", "text", "base64", "twice", "usable"])
def test_a_worker_does_not_start_with_an_unusable_key(
    case: str, make_shop: MakeShop, post: Post, tmp_path: Path
) -> None:
    text, says = _unusable(tmp_path)[case]
    shop = make_shop(dkim_keys=text)
    send(shop)
    if not says:
        drain(shop)
        assert selectors(post.bytes[0]) == ["s1"]
        return
    with pytest.raises(ConfigurationError, match=re.escape(says)) as caught:
        Worker(shop).drain(30)
    assert SECRET not in str(caught.value)
    assert post.bytes == []


def test_no_repr_shows_a_key(make_shop: MakeShop) -> None:
    shop = make_shop(dkim_keys=f"{NAME}={SECRET}")
    state = state_of(shop)
    shown = [repr(state.settings), repr(shop.settings), repr(state.signer.keys), repr(state.signer)]
    secret = SECRET.removeprefix("base64:")
    assert not any(secret in text or pem(ed25519()).decode() in text for text in shown)
