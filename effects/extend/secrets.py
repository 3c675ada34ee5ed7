"""Sealed columns and payloads, and signatures by Standard Webhooks (the module `signing`)."""

from __future__ import annotations

from effects.kit import lazy

with lazy.names(__name__):
    from effects.errors import SealInvalid as SealInvalid
    from effects.errors import SecretInvalid as SecretInvalid
    from effects.errors import SignatureInvalid as SignatureInvalid
    from effects.keys import signing as signing
    from effects.keys.sealing import SealedColumn as SealedColumn
    from effects.keys.sealing import seal_payload as seal_payload
    from effects.keys.signing import generate_secret as generate_secret
    from effects.keys.signing import sign as sign
    from effects.keys.signing import verify as verify
