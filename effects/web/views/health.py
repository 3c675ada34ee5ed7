"""What `effects doctor` finds, as a page."""

from __future__ import annotations

from effects.observation.doctor import examine
from effects.web.exchange import PageAnswer
from effects.web.visit import Visit

KEPT_SECONDS = 60.0
_ORDER = {"error": 0, "warning": 1, "ok": 2}


def health(visit: Visit) -> PageAnswer:
    findings = visit.count("doctor", KEPT_SECONDS, examine)
    ordered = sorted(findings, key=lambda finding: _ORDER[finding.level])
    return visit.page("health.html", findings=ordered)
