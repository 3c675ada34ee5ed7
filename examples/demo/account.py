"""Everything added up: the database's account against that of those who were written to."""

from __future__ import annotations

import msgspec
from sqlalchemy import select

from effects import Effects
from effects.operate.tables.audit import audit
from effects.operate.tables.job_list import Filters, list_jobs
from effects_reports import report_status
from examples.demo.board import Board
from examples.demo.flights import rows_in_the_file
from examples.demo.mailbox import Mailbox
from examples.demo.partners import Partner
from examples.demo.shop import BOSS, User


class SignupAccount(msgspec.Struct, frozen=True):
    """What became of the sign-ups. `strays` are messages that went to anybody else, or twice."""

    users: int
    welcomed: int
    crm_retried: int
    crm_dead: int
    strays: int


class PartnerAccount(msgspec.Struct, frozen=True):
    """What became of the deliveries to one partner."""

    partner: str
    deliveries: int
    delivered: int
    retried: int  # deliveries that needed a retry
    dead: int
    duplicates: int
    signatures_verified: int


class ReportAccount(msgspec.Struct, frozen=True):
    """A finished report. `rows_read` are those that an independent reader found in its file."""

    run_id: str
    report: str
    rows: int
    rows_read: int
    chunks: int
    bytes: int
    announced: bool


class Account(msgspec.Struct, frozen=True):
    """The whole demo in figures. `complete` says that everything is accounted for."""

    signups: SignupAccount
    events: int
    partners: list[PartnerAccount]
    reports: list[ReportAccount]
    findings: list[str]
    dead_job: int | None
    database_url: str
    complete: bool


def account(app: Effects, board: Board, mail: Mailbox, runs: dict[str, int]) -> Account:
    """
    Args:
        runs: the reports' runs, each with the rows that it must have.
    """
    signups = signups_account(app, board, mail)
    partners = [_partner(partner, board) for partner in board.partners if not partner.is_crm]
    reports = [_report(app, run, mail) for run in runs]
    findings = [finding.sentence for finding in audit(app.store, app.ledgers)]
    complete = (
        not findings
        and signups.users == signups.welcomed == signups.crm_dead == signups.crm_retried
        and signups.strays == 0
        and all(_adds_up(partner, board) for partner in board.partners if not partner.is_crm)
        and all(report.rows == report.rows_read == runs[report.run_id] and report.announced for report in reports)
    )
    return Account(
        signups=signups, events=board.events, partners=partners, reports=reports, findings=findings,
        dead_job=_a_dead_job(app), database_url=app.settings.database_url, complete=complete,
    )  # fmt: skip


def signups_account(app: Effects, board: Board, mail: Mailbox) -> SignupAccount:
    """The first act, as it stands."""
    crm = next(partner.name for partner in board.partners if partner.is_crm)
    with app.engine.connect() as connection:
        users = set(connection.scalars(select(User.email)))
    to = [message["to"] for message in mail.messages]
    welcomed = set(to) & users
    return SignupAccount(
        users=len(users),
        welcomed=len(welcomed),
        crm_retried=len(board.retried[crm]),
        crm_dead=board.dead[crm],
        strays=len(to) - len(welcomed) - to.count(BOSS),
    )


def _partner(partner: Partner, board: Board) -> PartnerAccount:
    return PartnerAccount(
        partner=partner.name,
        deliveries=board.events,
        delivered=board.delivered[partner.name],
        retried=len(board.retried[partner.name]),
        dead=board.dead[partner.name],
        duplicates=partner.duplicates,
        signatures_verified=partner.verified,
    )


def _adds_up(partner: Partner, board: Board) -> bool:
    return (
        board.delivered[partner.name] + board.dead[partner.name] == board.events
        and len(partner.accepted) == board.delivered[partner.name]
        and partner.duplicates == 0
        and partner.refuted == 0
    )


def _report(app: Effects, run_id: str, mail: Mailbox) -> ReportAccount:
    status = report_status(run_id, effects=app)
    announcements = [message for message in mail.messages if message["to"] == BOSS and run_id in message.get_content()]
    return ReportAccount(
        run_id=run_id,
        report=status.report,
        rows=status.rows or 0,
        rows_read=rows_in_the_file(app, run_id) if status.artifact else 0,
        chunks=status.progress.chunks_total,
        bytes=status.bytes or 0,
        announced=len(announcements) == 1,
    )


def _a_dead_job(app: Effects) -> int | None:
    dead = list_jobs(app.store, app.ledgers, Filters(status="dead", limit=1)).jobs
    return dead[0].id if dead else None
