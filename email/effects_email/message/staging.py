"""Mail of a system that is not the real one: sent to one address instead of everybody's."""

from __future__ import annotations

from msgspec.structs import replace

from effects_email.message.source import Address, MessageSource


def redirected(source: MessageSource, to: Address) -> MessageSource:
    """The same message to `to` alone. Its header `X-Original-To` names the original recipients."""
    meant = [address.spec for group in (source.to, source.cc, source.bcc) for address in group]
    shown = ", ".join(meant[:10]) + (f" and {len(meant) - 10} more" if len(meant) > 10 else "")
    return replace(source, to=(to,), cc=(), bcc=(), headers=(*source.headers, ("X-Original-To", shown)))
