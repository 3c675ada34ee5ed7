"""What `effects doctor` finds, as a page."""

from __future__ import annotations

from effects.observation.doctor import examine
from effects.web.exchange import PageAnswer
from effects.web.visit import Visit

KEPT_SECONDS = 60.0
_ORDER = {"error": 0, "warning": 1, "ok": 2}
_OF_A_CONNECTION = ("busy timeout", "durability")  # to an SQLite file: here those of the dashboard's own


def health(visit: Visit) -> PageAnswer:
    """All but how the app itself connects to an SQLite file, which only a command in the app can tell."""
    findings = visit.count("doctor", KEPT_SECONDS, examine)
    if not visit.app.store.is_postgresql:
        findings = [finding for finding in findings if finding.check not in _OF_A_CONNECTION]
    ordered = sorted(findings, key=lambda finding: _ORDER[finding.level])
    return visit.page("health.html", findings=ordered)
