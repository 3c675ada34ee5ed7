"""Whose data it is: one address, in every form that it is stored in."""

from __future__ import annotations

from sqlalchemy import Connection

from effects import Effects
from effects_email.message.address import Recipient, address_digests, recipient
from effects_email.suppressions.suppression import digest_key_missing
from effects_email.tables import sent, suppressions


def digests_of(app: Effects, connection: Connection, address: Recipient) -> tuple[str, ...]:
    """Every form under which an address may be stored, today's first.

    Raises:
        AddressInvalid: it is no address.
        KeyUnavailable: rows were written under a `digest` key that is missing: what is kept cannot be found.
    """
    forms = address_digests(app, recipient(address, where="address").spec)
    if not app.keys.digests_are_keyed and (
        sent.has_keyed_digests(app.store, connection) or suppressions.has_keyed_digests(app.store, connection)
    ):
        raise digest_key_missing("what is kept of this address")
    return forms
