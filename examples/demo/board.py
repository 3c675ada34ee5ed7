"""What the live view shows of the deliveries, counted as outcomes are recorded."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from effects.model.settlement import Settlement
from effects.worker import Observer
from examples.demo.partners import Partner


class Board(Observer):
    """Deliveries by partner."""

    def __init__(self, partners: Sequence[Partner]) -> None:
        self.partners = partners
        self.events = 0
        self.all_sent = False
        self.delivered: Counter[str] = Counter()
        self.dead: Counter[str] = Counter()
        self.retried: dict[str, set[int]] = {partner.name: set() for partner in partners}

    @property
    def all_ended(self) -> bool:
        """Every delivery of every event has succeeded or is dead."""
        partners = [partner for partner in self.partners if not partner.is_crm]
        ended = sum(self.delivered[partner.name] + self.dead[partner.name] for partner in partners)
        return self.all_sent and ended >= self.events * len(partners)

    def crm_ended(self, users: int) -> bool:
        """The CRM's deliveries have all succeeded or are dead."""
        names = [partner.name for partner in self.partners if partner.is_crm]
        return sum(self.delivered[name] + self.dead[name] for name in names) >= users

    def recorded(self, settlements: Sequence[Settlement]) -> None:
        """Count outcomes; called by the worker's settling thread."""
        for settlement in settlements:
            self._count(settlement)

    def _count(self, settlement: Settlement) -> None:
        if settlement.job.job_type != "webhook.deliver":
            return
        endpoint = json.loads(settlement.job.payload)["endpoint_id"]
        partner = next(partner.name for partner in self.partners if partner.endpoint_id == endpoint)
        if settlement.status == "succeeded":
            self.delivered[partner] += 1
        elif settlement.status == "dead":
            self.dead[partner] += 1
        elif settlement.status == "failed":
            self.retried[partner].add(settlement.job.id)
