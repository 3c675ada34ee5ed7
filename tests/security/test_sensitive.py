"""A field that is declared sensitive is sealed at rest, clear for its handler, and hidden everywhere else."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated, Any, Generic, NamedTuple, NewType, TypedDict, TypeVar
from urllib.parse import quote

import msgspec
import pytest
from hypothesis import example, given
from hypothesis.strategies import sampled_from, text
from typing_extensions import TypeAliasType

from effects import (
    ConfigurationError,
    Effects,
    IdempotencyConflict,
    JobType,
    KeyUnavailable,
    NewJob,
    PayloadInvalid,
    Schedule,
    Sensitive,
    enqueue,
    enqueue_many,
)
from effects.keys.sealing import open_payload, seal_payload
from effects.kit.text.redact import HIDDEN, redact, secret_texts, sensitive_fields
from effects.model.registry import Registry
from effects.operate.evidence import job_evidence
from effects.store.effects.requeue import requeue
from effects.worker import Worker
from tests.security.conftest import VaultFactory
from tests.security.vault import CARD, DIGEST, NEW_KEYS, OLD, OLD_KEYS, Card, Charge, ChargeCard
from tests.support.manual_workers import row, rows, run_sql


@dataclasses.dataclass
class Login:
    user: str
    code: Annotated[str, Sensitive]


class LoginType(JobType[Login]):
    name = "login.send"
    payload = Login

    def perform(self, payload: Any, attempt: Any) -> None:
        """Nothing is to be done here."""


def charge_type(app: Effects) -> ChargeCard:
    job_type = app.job_types.get("card.charge")
    assert isinstance(job_type, ChargeCard)
    return job_type


def stored(app: Effects, table: str = "jobs") -> dict[str, Any]:
    payload = row(app, table)["payload"]
    return json.loads(payload) if isinstance(payload, str) else payload


def test_the_declared_fields_are_found_by_their_names_in_json() -> None:
    assert sensitive_fields(Charge) == ("card", "buyerName", "notes")
    assert sensitive_fields(Login) == ("code",)
    assert sensitive_fields(dict) == ()
    assert sensitive_fields(Card) == ("number",)


Secret = NewType("Secret", Annotated[str, Sensitive])
Alias = TypeAliasType("Alias", Annotated[str, Sensitive])
T = TypeVar("T")


class Keys(TypedDict):
    pin: Annotated[str, Sensitive]


class Pair(NamedTuple):
    user: str
    pin: Annotated[str, Sensitive]


@dataclasses.dataclass
class Box(Generic[T]):
    content: T
    pin: Annotated[str, Sensitive]


@dataclasses.dataclass
class Crate(Generic[T]):
    content: T
    size: int


@pytest.mark.parametrize(
    "kind", [Secret, Alias, Keys, Pair, Box[int], Crate[Secret], list[Secret], dict[str, Keys], Login | None], ids=str
)
def test_a_mark_is_found_however_deep_it_is_in_a_fields_type(kind: Any) -> None:
    payload = dataclasses.make_dataclass("Order", [("id", int), ("detail", kind)])
    assert sensitive_fields(payload) == ("detail",)


@pytest.mark.parametrize(
    ("payload", "fields"),
    [
        (Keys, ("pin",)),
        (Box[int], ("pin",)),
        (Box[Secret], ("content", "pin")),
        (Crate[int], ()),
        (Crate[Secret], ("content",)),
        (Annotated[Login, "of a person"], ("code",)),
        (Login | Charge, ("code", "card", "buyerName", "notes")),
    ],
    ids=str,
)
def test_a_payload_may_be_of_any_type_with_fields(payload: Any, fields: tuple[str, ...]) -> None:
    assert sensitive_fields(payload) == fields


@pytest.mark.parametrize("kind", [dict[str, Secret], list[Login], Pair], ids=str)
def test_a_mark_outside_of_a_field_is_refused(kind: Any) -> None:
    class Sending(LoginType):
        payload = kind

    with pytest.raises(ConfigurationError, match="Sensitive marks a part of its payload that is no field"):
        Registry([Sending()])


def test_a_class_of_attrs_counts_as_one_of_dataclasses() -> None:
    attrs = pytest.importorskip("attrs")
    lock = attrs.make_class("Lock", ["pin"])
    lock.__annotations__ = {"pin": Annotated[str, Sensitive]}
    assert sensitive_fields(lock) == ("pin",)
    assert secret_texts(lock("4111-secret"), ("pin",)) == ["4111-secret"]


def test_a_generic_class_hides_what_is_sensitive_in_its_repr() -> None:
    class Sending(LoginType):
        payload: Any = Crate[Secret]

    Registry([Sending()])
    assert repr(Crate(Secret("4111"), 7)) == f"Crate(content={HIDDEN}, size=7)"


def test_sealed_in_the_database_and_clear_for_the_handler(vault: VaultFactory) -> None:
    app = vault()
    enqueue("card.charge", CARD, effects=app)
    payload = stored(app)
    assert set(payload) == {"orderId", "$sealed"}
    assert "secret" not in json.dumps(payload)
    Worker(app).drain()
    assert charge_type(app).seen == [CARD]
    assert "secret" not in json.dumps(stored(app, "job_history"))


def test_the_digest_is_of_what_the_caller_gave(vault: VaultFactory) -> None:
    app = vault()
    first = enqueue("card.charge", CARD, key="order:7", effects=app)
    again = enqueue("card.charge", CARD, key="order:7", effects=app)
    assert (again.job_id, again.existing) == (first.job_id, True)
    different = msgspec.structs.replace(CARD, buyer_name="Bob")
    with pytest.raises(IdempotencyConflict):
        enqueue("card.charge", different, key="order:7", effects=app)
    many = [NewJob(job_type="card.charge", payload=CARD, key=key) for key in ("order:7", "order:8")]
    assert [receipt.existing for receipt in enqueue_many(many, effects=app)] == [True, False]


def test_without_keys_nothing_is_stored_in_clear(vault: VaultFactory) -> None:
    app = vault("")
    with pytest.raises(KeyUnavailable, match="effects keys generate"):
        enqueue("card.charge", CARD, effects=app)
    with app.store.read() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM effects_jobs").scalar() == 0


def test_a_plain_digest_of_a_secret_is_refused(vault: VaultFactory) -> None:
    app = vault(f"old={OLD}")
    enqueue("card.charge", CARD, effects=app)  # no key, no digest
    with pytest.raises(KeyUnavailable, match="a key named digest"):
        enqueue("card.charge", CARD, key="order:7", effects=app)


def test_a_plain_insert_is_sealed_before_its_first_attempt(vault: VaultFactory) -> None:
    app = vault()
    run_sql(
        app,
        "INSERT INTO effects_jobs (job_type, payload, idempotency_key) VALUES ('card.charge', :payload, 'order:9')",
        payload=json.dumps({"orderId": 9, "card": {"number": "4111-secret"}, "say": "retry"}),
    )
    Worker(app).drain()
    assert charge_type(app).seen == [Charge(9, Card("4111-secret"), say="retry")]
    assert set(stored(app)) == {"orderId", "say", "$sealed"}


@pytest.mark.parametrize("how", ["another type", "altered"])
def test_what_no_key_opens_is_refused_at_once(vault: VaultFactory, how: str) -> None:
    app = vault()
    enqueue("card.charge", CARD, effects=app)
    Worker(app).drain()  # the key is the right one: it has opened something
    receipt = enqueue("card.charge", CARD, effects=app)
    document = stored(app)
    if how == "another type":
        moved = seal_payload(app.keys, LoginType(), '{"user": "ann", "code": "4111-secret"}')
        document["$sealed"] = json.loads(moved)["$sealed"]
    else:
        document["$sealed"]["value"] = document["$sealed"]["value"][:-8] + "AAAAAAA="
    run_sql(app, "UPDATE effects_jobs SET payload = :payload", payload=json.dumps(document))
    enqueue("card.charge", CARD, effects=app)
    Worker(app).drain()
    history = rows(app, "job_history", "status = 'dead'")
    assert [(entry["id"], entry["error_code"]) for entry in history] == [(receipt.job_id, "payload_invalid")]
    assert "does not open with key 'old'" in history[0]["last_error"]
    assert rows(app, "jobs") == []
    assert len(charge_type(app).seen) == 2, "its neighbours run"


def test_a_key_with_another_value_under_its_id_ends_no_job(vault: VaultFactory) -> None:
    app = vault()
    enqueue("card.charge", CARD, effects=app)
    mistaken = vault(f"old={DIGEST},digest={DIGEST}")
    Worker(mistaken).drain()
    [waiting] = rows(app, "jobs")
    assert (waiting["status"], waiting["attempts"]) == ("queued", 0)
    assert "EFFECTS_KEYS may hold another key under this id" in waiting["last_error"]
    app.store.shift_clock(61)
    Worker(app).drain()
    assert len(charge_type(app).seen) == 1


@pytest.mark.parametrize("keys", [NEW_KEYS, ""], ids=["missing", "none"])
def test_a_worker_without_the_key_waits_and_uses_up_no_attempt(vault: VaultFactory, keys: str) -> None:
    app = vault()
    receipt = enqueue("card.charge", CARD, effects=app)
    wrong = vault(keys)
    Worker(wrong).drain()
    evidence = job_evidence(app, receipt.job_id)
    assert (evidence.facts.jobs[0].status, evidence.facts.jobs[0].attempts) == ("queued", 0)
    assert [attempt.outcome for attempt in evidence.facts.attempts] == ["snoozed"]
    assert evidence.waits is not None
    assert (evidence.waits.reason, evidence.waits.cause) == ("operator", evidence.facts.attempts[0].message)
    assert charge_type(wrong).seen == []
    app.store.shift_clock(61)
    forgiven = app.store.sql.seconds("created_at", "age_from")  # a minute that does not make it older
    assert rows(app, "jobs", f"{forgiven} BETWEEN 59 AND 61")
    Worker(app).drain()
    assert charge_type(app).seen == [CARD]


def test_sealed_fields_open_in_their_job_type_only() -> None:
    app = Effects("sqlite:///unused.db", job_types=[ChargeCard(), LoginType()], keys=OLD_KEYS)
    sealed = seal_payload(app.keys, charge_type(app), '{"orderId":1,"card":{"number":"4111"}}')
    assert json.loads(open_payload(app.keys, "card.charge", sealed))["card"] == {"number": "4111"}
    with pytest.raises(KeyUnavailable):
        open_payload(app.keys, "login.send", sealed)
    broken = json.loads(sealed)
    broken["$sealed"] = {"key": "old"}
    with pytest.raises(PayloadInvalid, match="not in the sealed format"):
        open_payload(app.keys, "card.charge", json.dumps(broken))
    app.dispose()


def test_a_dead_one_is_requeued_with_its_secrets(vault: VaultFactory) -> None:
    app = vault()
    receipt = enqueue("card.charge", msgspec.structs.replace(CARD, say="retry"), max_attempts=1, effects=app)
    Worker(app).drain()
    requeue(app.store, app.job_types, receipt.job_id, actor="ann")
    Worker(app).drain()
    assert [charge.card.number for charge in charge_type(app).seen] == ["4111-secret", "4111-secret"]


@pytest.mark.parametrize("say", ["retry", "raise", ""])
def test_what_a_handler_quotes_of_its_payload_is_redacted(vault: VaultFactory, say: str) -> None:
    app = vault()
    payload = msgspec.structs.replace(CARD, say=say)
    receipt = enqueue("card.charge", payload, max_attempts=1, effects=app)
    Worker(app).drain()
    shown = repr(msgspec.to_builtins(job_evidence(app, receipt.job_id)))
    assert "secret" not in shown.lower()
    if say != "raise":  # an exception's text is not kept at all
        assert HIDDEN in shown


@pytest.mark.parametrize("show", [repr, str, "{}".format, "{!r:>3}".format])
def test_a_payloads_repr_hides_them(show: Any) -> None:
    Registry([ChargeCard(), LoginType()])
    assert show(CARD).strip() == f"Charge(order_id=7, card={HIDDEN}, buyer_name={HIDDEN}, notes={HIDDEN}, say='')"
    assert "secret" not in show(CARD.card)
    assert show(Login("ann", "123456")).strip() == f"Login(user='ann', code={HIDDEN})"
    assert "secret" not in show(NewJob(job_type="card.charge", payload={"card": "4111-secret"}))


def test_a_payload_that_does_not_fit_is_not_quoted() -> None:
    class Picky(msgspec.Struct):
        code: Annotated[str, Sensitive]
        size: str

        def __post_init__(self) -> None:
            raise ValueError(f"no such code: {self.code}")

    class PickyType(JobType[Picky]):
        name = "picky"
        payload = Picky

    with pytest.raises(PayloadInvalid) as caught:
        PickyType().encode({"code": "4111-secret", "size": "s"})
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None
    with pytest.raises(PayloadInvalid, match=r"Expected `str`, got `int` - at `\$.size`"):
        PickyType().encode({"code": "x", "size": 3})


def test_the_name_of_the_sealed_part_is_kept() -> None:
    class Free(JobType[dict[str, Any]]):
        name = "free"

    with pytest.raises(PayloadInvalid, match=r"the field name \$sealed is kept"):
        Free().encode({"$sealed": 1})
    assert Free().encode({"text": "$sealed"})


def test_short_texts_are_not_redacted() -> None:
    assert secret_texts(Login("ann", "no"), ["code"]) == []
    assert redact("no one", []) == "no one"
    secrets = secret_texts({"a": ["long-one", "long"], "b": 123456}, ["a", "b"])
    assert redact({"x": ["a long-one", 123456, 7]}, secrets) == {"x": [f"a {HIDDEN}", HIDDEN, 7]}


@given(
    text(min_size=4, max_size=24), sampled_from([": {}.", "to={}", "'{}'", "<{}>", "({})", "https://{}/x", "a\n{}\nb"])
)
@example("orders", "{}")
@example("a\nmiller", "{}")
def test_no_whole_value_of_a_sensitive_field_is_shown(secret: str, around: str) -> None:
    secrets = secret_texts(Login("ann", secret), ("code",))
    for form in (secret, repr(secret), json.dumps(secret), quote(secret, safe="")):
        shown = redact({form: [around.format(form)]}, secrets)
        assert secret not in json.dumps(shown, ensure_ascii=False).replace(HIDDEN, "")
        assert HIDDEN in shown[next(iter(shown))][0]


@pytest.mark.parametrize("secret", ["hunter2", "s3cr3t", "ann@example.com", "Ann Smith", "correcthorsebattery"])
def test_a_secret_that_is_no_plain_word_is_hidden_within_another_one(secret: str) -> None:
    assert secret not in redact(f"x{secret}y", secret_texts(Login("ann", secret), ("code",)))


@pytest.mark.parametrize(
    "names",
    ["template orders_ready: no 'day'", "orders.daily failed", "already ready_at orders-2026.csv", "12345 bytes"],
)
def test_a_word_or_a_number_of_a_sensitive_field_hides_no_longer_name(names: str) -> None:
    secrets = secret_texts({"context": {"report": "orders", "state": "ready", "size": 2345, "x": "daily"}}, ["context"])
    assert redact(names, secrets) == names


def test_what_a_payload_holds_in_clear_is_no_secret() -> None:
    assert secret_texts({"template": "orders", "context": ["orders", "miller"]}, ["context"]) == ["miller"]
    assert secret_texts({"context": {"day": "miller", "since": 1}}, ["context"], clear=["since"]) == ["miller"]


def test_a_schedule_stores_its_payload_in_clear_and_may_hold_no_secret(vault: VaultFactory) -> None:
    app = vault()
    wrong = Schedule("charge", "card.charge", {"orderId": 1, "card": {"number": "4111"}}, cron="0 3 * * *")
    with pytest.raises(ConfigurationError, match=r"card is sensitive") as caught:
        app.add_schedules(wrong)
    assert "4111" not in str(caught.value)
