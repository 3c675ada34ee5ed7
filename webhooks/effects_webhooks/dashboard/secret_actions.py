"""What an admin may do with the secrets of an endpoint: the functions of the commands."""

from __future__ import annotations

from effects.web import ActionCall, ActionEnd, ActionField, PageAction, Visit
from effects_webhooks.admin.rotation import expire_secret, rotate_secret
from effects_webhooks.errors import EndpointNotFound
from effects_webhooks.tenants import ANY_TENANT

# What a form offers for how long the secrets before it still sign: words → hours.
OVERLAPS = {"1 day": 24, "1 hour": 1, "3 days": 72, "7 days": 168, "not at all: one has leaked": 0}


def _rotate(call: ActionCall) -> ActionEnd:
    """The only page that ever shows the secret."""
    overlap = call.fields["overlap"]
    created = rotate_secret(
        call.subject, overlap_seconds=OVERLAPS[overlap] * 3_600.0, actor=call.actor, reason=call.reason,
        tenant=ANY_TENANT, effects=call.visit.app,
    )  # fmt: skip
    return ActionEnd(
        answer=call.visit.page(
            "webhooks/secret.html", created=created, overlap=overlap if OVERLAPS[overlap] else None,
            endpoint_id=call.subject, back=_to_endpoint(call.visit, call.subject),
        )
    )  # fmt: skip


def _expire(call: ActionCall) -> None:
    _, secret_id = _parts(call.subject)
    expire_secret(secret_id, actor=call.actor, reason=call.reason, tenant=ANY_TENANT, effects=call.visit.app)


def _parts(name: str) -> tuple[str, str]:
    endpoint_id, colon, secret_id = name.partition(":")
    if not colon:
        raise EndpointNotFound("a secret is named ep_…:sec_…")
    return endpoint_id, secret_id


def _to_endpoint(visit: Visit, name: str) -> str:
    return visit.url("webhooks_endpoint", endpoint=name.partition(":")[0])


ACTIONS = (
    PageAction("webhooks_rotate", "/webhooks/endpoints/rotate", "endpoint", "admin", "Rotate the secret",
               "A new secret signs from the next try on, beside those before it for as long as you choose. It is shown "
               "once, on the page that follows: have a safe way to the partner ready.",
               "The secret is rotated.", _rotate, _to_endpoint,
               fields=(ActionField("overlap", "The secrets before it still sign for", "choice", tuple(OVERLAPS)),)),
    PageAction("webhooks_expire", "/webhooks/secrets/expire", "secret", "admin", "Expire",
               "It signs nothing more from the next try on: a partner who still checks by it refuses what we send.",
               "The secret has expired.", _expire, _to_endpoint, danger=True),
)  # fmt: skip
