"""What several providers' APIs have in common: how they take a message, and that some cannot be asked about one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from effects_email.transport.base import OutgoingMessage, Verdict
    from effects_email.transport.http_api.transport import ProviderRequest


class TakesAllOrNone:
    """It takes a message for all of its recipients or for none; whom it drops later, an event names."""

    def refused(self, document: Mapping[str, Any], recipients: Sequence[str]) -> Mapping[str, Verdict]:
        return {}


class CannotBeAsked:
    """It cannot be searched for a message."""

    def question(self, outgoing: OutgoingMessage, token: str) -> ProviderRequest | None:
        return None

    def known(self, document: Mapping[str, Any]) -> bool | None:
        return None
