"""The entry point `effects.pages`: routes, navigation, and what the core's pages show of reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from effects.web import ActionCall, NavigationEntry, PageAction, PageRoute, Pages, StandingLine, StoryLink, Visit
from effects_reports.admin import cancel_report, resume_report
from effects_reports.api import list_reports
from effects_reports.dashboard import bucket_pages, run_pages
from effects_reports.errors import ReportNotFound
from effects_reports.routing import ASSEMBLE_TYPE, CHUNK_TYPE, DELIVER_TYPE, PLAN_TYPE

_NAMED_MAX = 3


def _links(visit: Visit, evidence: Any) -> Sequence[StoryLink]:
    """Of the jobs of a run: the run. Of a delivery into a bucket: the buckets."""
    run_id = evidence.facts.about.get("run")
    if evidence.job_type == DELIVER_TYPE:
        return (StoryLink("The buckets", visit.url("reports_buckets")),)
    if evidence.job_type not in (PLAN_TYPE, CHUNK_TYPE, ASSEMBLE_TYPE) or run_id is None:
        return ()
    return (StoryLink("The run", visit.url("reports_run", run=run_id)),)


def _standing(visit: Visit) -> Sequence[StandingLine]:
    """Runs that are under way."""
    runs = list_reports(state="running", limit=_NAMED_MAX, effects=visit.app)
    return [
        StandingLine("running", f"report {run.report}: {run.progress.fraction:.0%}",
                 visit.url("reports_run", run=run.run_id))
        for run in runs
    ]  # fmt: skip


def _to_run(visit: Visit, name: str) -> str:
    return visit.url("reports_run", run=name)


def _cancel(call: ActionCall) -> None:
    cancel_report(call.subject, actor=call.actor, reason=call.reason, effects=call.visit.app)


def _resume(call: ActionCall) -> None:
    resume_report(call.subject, actor=call.actor, reason=call.reason, effects=call.visit.app)


ACTIONS = (
    PageAction("reports_cancel", "/reports/cancel", "run", "operator", "Cancel",
               "Chunks that wait end unmade, those under way stop within a second, finished ones are kept. It can be "
               "resumed.", "It is cancelled, or is about to be.", _cancel, _to_run),
    PageAction("reports_resume", "/reports/resume", "run", "operator", "Resume",
               "Only chunks that are not done are made.", "It is taken up again.", _resume, _to_run),
)  # fmt: skip

PAGES = Pages(
    name="reports",
    label="Reports",
    package="effects_reports.dashboard",
    navigation=(NavigationEntry("reports", "Runs", "r"), NavigationEntry("reports_buckets", "Buckets", "f")),
    routes=(
        PageRoute("reports", ("GET",), "/reports", run_pages.runs, role="viewer", personal=False),
        PageRoute("reports_buckets", ("GET",), "/reports/buckets", bucket_pages.buckets, role="viewer", personal=False),
        PageRoute("reports_run", ("GET",), "/reports/runs/{run}", run_pages.run, role="viewer", personal=False),
        PageRoute("reports_rows", ("POST",), "/reports/runs/{run}/rows", run_pages.first_rows, role="viewer",
                  personal=True, acts=True),
        PageRoute("reports_file", ("POST",), "/reports/runs/{run}/file", run_pages.download, role="viewer",
                  personal=True, acts=True),
    ),
    actions=ACTIONS,
    missing=(ReportNotFound,),
    links=_links,
    standing=_standing,
)  # fmt: skip
