"""Mail of a system that is not the real one: sent to one address instead of everybody's."""

from __future__ import annotations

from msgspec.structs import replace

from effects_email.parts import Address, Parts


def redirected(parts: Parts, to: Address) -> Parts:
    """The same message to `to` alone. Its header `X-Original-To` says who would have had it."""
    meant = [one.spec for group in (parts.to, parts.cc, parts.bcc) for one in group]
    shown = ", ".join(meant[:10]) + (f" and {len(meant) - 10} more" if len(meant) > 10 else "")
    return replace(parts, to=(to,), cc=(), bcc=(), headers=(*parts.headers, ("X-Original-To", shown)))
