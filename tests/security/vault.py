"""A job type with sensitive fields of every kind, and apps that know different keys."""

from __future__ import annotations

from typing import Annotated

import msgspec

from effects import (
    Attempt,
    Done,
    Effects,
    JobType,
    Outcome,
    Retry,
    Sensitive,
)
from effects.keys.encryption import generate_key

OLD, NEW, DIGEST = generate_key(), generate_key(), generate_key()
OLD_KEYS = f"old={OLD},digest={DIGEST}"
BOTH_KEYS = f"new={NEW},old={OLD},digest={DIGEST}"
NEW_KEYS = f"new={NEW},digest={DIGEST}"


class Card(msgspec.Struct, frozen=True):
    number: Annotated[str, Sensitive]
    brand: str = "none"


class Charge(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """`card` is sealed because the mark stands in the class that is nested in it."""

    order_id: int
    card: Card
    buyer_name: Annotated[str | None, Sensitive] = None
    notes: list[Annotated[str, Sensitive]] = []
    say: str = ""


class ChargeCard(JobType[Charge]):
    """Does as `say` says; keeps what it was given."""

    name = "card.charge"
    payload = Charge

    def __init__(self) -> None:
        self.seen: list[Charge] = []

    def perform(self, payload: Charge, attempt: Attempt) -> Outcome:
        self.seen.append(payload)
        quoted = f"{payload.buyer_name} with {payload.card.number} and {payload.notes}"
        if payload.say == "retry":
            return Retry(quoted, code=f"declined:{payload.card.number}", detail={"card": payload.card.number})
        if payload.say == "raise":
            raise ValueError(quoted)
        return Done(detail={"said": [quoted]})


def vault_app(url: str, keys: str = OLD_KEYS, **options: object) -> Effects:
    return Effects(url, job_types=[ChargeCard()], keys=keys, **options)


CARD = Charge(7, Card("4111-secret", "visa"), "Ann Secret", ["knock-secret"])
