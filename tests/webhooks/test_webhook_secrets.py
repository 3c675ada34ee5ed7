"""Secrets: strict import, rotation with an overlap, several signatures, and their end."""

from __future__ import annotations

import base64
import threading

import pytest
import standardwebhooks
from sqlalchemy import text
from sqlalchemy.orm import Session

from effects import Effects
from effects.worker import Worker
from effects_webhooks import (
    EndpointInvalid,
    EndpointNotFound,
    SecretInvalid,
    WebhookEvent,
    add_endpoint,
    deliver_webhook,
    expire_secret,
    generate_secret,
    list_secrets,
    rotate_secret,
    verify,
)
from tests.peers.http import Receiver, Request
from tests.webhooks.conftest import Rows

DAY = 86_400


def sent(shop: Effects, receiver: Receiver) -> Request:
    """One more request, as the partner gets it now."""
    before = len(receiver.requests)
    deliver_webhook(WebhookEvent("order.paid", {"n": before}), effects=shop)
    Worker(shop).drain(max_seconds=50)
    assert len(receiver.requests) == before + 1
    return receiver.requests[-1]


def tokens(request: Request) -> list[str]:
    return request.headers["webhook-signature"].split(" ")


@pytest.mark.slow
def test_a_rotation_signs_with_both_for_a_day_and_then_with_the_new_one(shop: Effects) -> None:
    with Receiver() as receiver:
        endpoint = add_endpoint(receiver.url, effects=shop)
        assert len(tokens(sent(shop, receiver))) == 1
        new = rotate_secret(endpoint.id, effects=shop)
        request = sent(shop, receiver)
        for secret, token in zip((new.secret, endpoint.secret), tokens(request), strict=True):
            single = {**request.headers, "webhook-signature": token}
            assert verify(secret, single, request.body) == request.message_id
            standardwebhooks.Webhook(secret).verify(request.body, request.headers)  # takes the header as it is
        shop.store.shift_clock(DAY - 10)
        assert len(tokens(sent(shop, receiver))) == 2
        shop.store.shift_clock(20)
        request = sent(shop, receiver)
        assert len(tokens(request)) == 1
        verify(new.secret, request.headers, request.body)
    secrets = list_secrets(endpoint.id, effects=shop)
    assert [(secret.id == new.id, secret.signs, secret.expires_at is None) for secret in secrets] == [
        (True, True, True), (False, False, False),
    ]  # fmt: skip
    assert new.secret not in repr(new)


def test_a_leaked_secret_ends_at_once(shop: Effects) -> None:
    with Receiver() as receiver:
        endpoint = add_endpoint(receiver.url, effects=shop)
        new = rotate_secret(endpoint.id, overlap_seconds=0, effects=shop)
        request = sent(shop, receiver)
        assert len(tokens(request)) == 1
        verify(new.secret, request.headers, request.body)


def test_a_partners_own_secret_is_taken_strictly(shop: Effects) -> None:
    endpoint = add_endpoint("http://127.0.0.1:9/", effects=shop)
    theirs = generate_secret()
    assert rotate_secret(endpoint.id, secret=theirs, effects=shop).secret == theirs
    raw = b"\xff" * 32
    for wrong in (
        "", "whsec_", "whsec_" + base64.b64encode(b"x" * 23).decode(), "whsec_" + base64.b64encode(b"x" * 65).decode(),
        "whsec_" + base64.urlsafe_b64encode(raw).decode(), theirs.removeprefix("whsec_"), theirs + "\n", theirs[:-1],
        theirs.replace("whsec_", "whsk_"),
    ):  # fmt: skip
        with pytest.raises(SecretInvalid) as caught:
            rotate_secret(endpoint.id, secret=wrong, effects=shop)
        assert len(wrong) < 10 or wrong not in str(caught.value)
    assert len(list_secrets(endpoint.id, effects=shop)) == 2


def test_at_most_three_sign_at_once(shop: Effects) -> None:
    endpoint = add_endpoint("http://127.0.0.1:9/", effects=shop)
    for _ in range(2):
        rotate_secret(endpoint.id, effects=shop)
    with pytest.raises(EndpointInvalid, match="expire one"):
        rotate_secret(endpoint.id, effects=shop)
    oldest = list_secrets(endpoint.id, effects=shop)[-1]
    expire_secret(oldest.id, effects=shop)
    rotate_secret(endpoint.id, effects=shop)
    assert [secret.signs for secret in list_secrets(endpoint.id, effects=shop)] == [
        True,
        True,
        True,
    ]  # the ended one is gone
    rotate_secret(endpoint.id, overlap_seconds=0, effects=shop)  # a leak may always be ended
    assert next(secret.signs for secret in list_secrets(endpoint.id, effects=shop))


def test_a_refused_rotation_leaves_the_secrets_as_they_were(shop: Effects) -> None:
    """In a transaction of the app's, too, which commits what it has done besides."""
    endpoint = add_endpoint("http://127.0.0.1:9/", effects=shop)
    for _ in range(2):
        rotate_secret(endpoint.id, effects=shop)
    before = list_secrets(endpoint.id, effects=shop)
    with Session(shop.engine) as session, session.begin(), pytest.raises(EndpointInvalid, match="expire one"):
        rotate_secret(endpoint.id, session=session, effects=shop)
    assert list_secrets(endpoint.id, effects=shop) == before


def test_the_secret_that_is_to_stay_cannot_be_ended(shop: Effects) -> None:
    """After the overlap of those before it nothing could be signed."""
    endpoint = add_endpoint("http://127.0.0.1:9/", effects=shop)
    wrong = rotate_secret(endpoint.id, effects=shop)
    with pytest.raises(EndpointInvalid, match=r"only secret without an end.*rotate first"):
        expire_secret(wrong.id, effects=shop)
    right = rotate_secret(endpoint.id, effects=shop)
    expire_secret(wrong.id, effects=shop)
    shop.store.shift_clock(2 * DAY)
    assert [secret.id for secret in list_secrets(endpoint.id, effects=shop) if secret.signs] == [right.id]


def test_neither_the_last_secret_nor_an_ended_one_can_be_ended(shop: Effects) -> None:
    endpoint = add_endpoint("http://127.0.0.1:9/", effects=shop)
    only = list_secrets(endpoint.id, effects=shop)[0]
    with pytest.raises(EndpointInvalid, match="only secret"):
        expire_secret(only.id, effects=shop)
    rotate_secret(endpoint.id, effects=shop)
    expire_secret(only.id, effects=shop)
    with pytest.raises(EndpointInvalid, match="ended already"):
        expire_secret(only.id, effects=shop)
    for call in (
        lambda: expire_secret("sec_none", effects=shop),
        lambda: rotate_secret("ep_none", effects=shop),
        lambda: list_secrets("ep_none", effects=shop),
    ):
        with pytest.raises(EndpointNotFound):
            call()


@pytest.mark.parametrize("overlap", [-1, 7 * DAY + 1, float("nan"), float("inf")])
def test_an_overlap_is_0_to_7_days(shop: Effects, overlap: float) -> None:
    endpoint = add_endpoint("http://127.0.0.1:9/", effects=shop)
    with pytest.raises(EndpointInvalid, match="give 0 to 604,800"):
        rotate_secret(endpoint.id, overlap_seconds=overlap, effects=shop)


def test_concurrent_rotations_are_serialized(shop: Effects) -> None:
    endpoint = add_endpoint("http://127.0.0.1:9/", effects=shop)
    refused: list[EndpointInvalid] = []

    def rotate() -> None:
        try:
            rotate_secret(endpoint.id, effects=shop)
        except EndpointInvalid as error:
            refused.append(error)

    threads = [threading.Thread(target=rotate) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    secrets = list_secrets(endpoint.id, effects=shop)
    assert len([secret for secret in secrets if secret.signs]) == 3
    assert len(refused) == 4
    assert len([secret for secret in secrets if secret.expires_at is None]) == 1


def test_the_newest_secret_comes_first_whatever_the_clock_shows(shop: Effects) -> None:
    with Receiver() as receiver:
        endpoint = add_endpoint(receiver.url, effects=shop)
        for shift in (0, -3600):  # the second is made at an earlier time than the one before it
            shop.store.shift_clock(shift)
            newest = rotate_secret(endpoint.id, effects=shop)
        shop.store.shift_clock(3600)
        assert next(secret.id for secret in list_secrets(endpoint.id, effects=shop)) == newest.id
        request = sent(shop, receiver)
        first = {**request.headers, "webhook-signature": tokens(request)[0]}
        assert verify(newest.secret, first, request.body) == request.message_id


def test_secrets_of_one_moment_come_in_their_order(shop: Effects, rows: Rows) -> None:
    endpoint = add_endpoint("http://127.0.0.1:9/", effects=shop)
    ids = [rotate_secret(endpoint.id, effects=shop).id for _ in range(2)]
    with shop.store.begin() as connection:
        connection.execute(text("UPDATE effects_webhook_secrets SET created_at = " + shop.store.sql.after("-5")))
    assert [secret.id for secret in list_secrets(endpoint.id, effects=shop)][:2] == ids[::-1]
    assert [row["number"] for row in rows("SELECT number FROM effects_webhook_secrets ORDER BY number")] == [1, 2, 3]
