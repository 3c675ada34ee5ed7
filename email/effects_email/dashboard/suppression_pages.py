"""Suppressions: who is not written to, and why. Addresses for those who may see them; they stand in no URL."""

from __future__ import annotations

from effects.extend import AuditAction
from effects.web import PAGE_ROWS, PageAnswer, Visit, choice_of, notice
from effects_email.errors import SuppressionInvalid
from effects_email.suppressions.rows import REASONS
from effects_email.suppressions.suppression import Suppression, list_suppressions, suppress, unsuppress

REVEAL = AuditAction("suppressions", "reveal")


def suppressions(visit: Visit) -> PageAnswer:
    """What holds now, without addresses."""
    return _list(visit)


def reveal(visit: Visit) -> PageAnswer:
    """The same with the addresses, noted in the audit log first."""
    visit.note_look(REVEAL, choice_of(visit.form, "reason_shown", REASONS) or "all")
    return _list(visit, revealed=True)


def _list(visit: Visit, *, revealed: bool = False) -> PageAnswer:
    fields = visit.form if revealed else visit.query
    reason = choice_of(fields, "reason_shown", REASONS)
    rows: list[Suppression] = list_suppressions(reason=reason, limit=PAGE_ROWS * 2, effects=visit.app)
    return visit.page(
        "email/suppressions.html", revealed=revealed, rows=rows, reason=reason, reasons=REASONS, most=PAGE_ROWS * 2,
        notice=notice(visit),
    )  # fmt: skip


def add(visit: Visit) -> PageAnswer:
    """Suppress an address, by hand."""
    with visit.acting():
        suppress(
            _address(visit), source="web", actor=visit.someone.actor, why=visit.form.get("reason"), effects=visit.app
        )
    return visit.redirect("email_suppressions", did="email_suppress")


def lift(visit: Visit) -> PageAnswer:
    """Ask first, then lift what holds for an address."""
    address = _address(visit)
    if visit.form.get("sure") != "yes":
        return visit.page("email/lift.html", revealed=True, address=address)
    with visit.acting():
        unsuppress(address, actor=visit.someone.actor, why=visit.form.get("reason"), effects=visit.app)
    return visit.redirect("email_suppressions", did="email_lift")


def _address(visit: Visit) -> str:
    address = visit.form.get("address")
    if address is None:
        raise SuppressionInvalid("give an address")
    return address
