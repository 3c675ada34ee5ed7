"""All routes of the dashboard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from effects.web.actions import page_action_view
from effects.web.exchange import PageAnswer
from effects.web.job_actions import JOB_ACTIONS, job_action_view
from effects.web.pages import Pages
from effects.web.routes import PageRoute
from effects.web.sessions import SignIn
from effects.web.subject_actions import SUBJECT_ACTIONS
from effects.web.views import (
    audit,
    bulk_pages,
    desk,
    health,
    jobs,
    lists,
    needs,
    numbers,
    numbers_file,
    overview,
    settings,
    story,
    ticked,
)
from effects.web.visit import Visit

FOREVER = "public, max-age=31536000, immutable"


def build_routes(sign_in: SignIn | None, packages: Sequence[Pages]) -> Iterator[PageRoute]:
    """Every route; those of sessions where they are ours."""
    yield from _core_routes()
    for pages in packages:
        yield from pages.routes
    for action in (*SUBJECT_ACTIONS, *(action for pages in packages for action in pages.actions)):
        yield PageRoute(
            action.name, ("GET", "POST"), action.pattern, page_action_view(action), role=action.role, personal=False,
            acts=True,
        )  # fmt: skip
    if sign_in is not None:
        yield PageRoute("sign_in", ("GET",), "/sign-in", sign_in.ask, role="public", personal=False)
        yield PageRoute("enter", ("POST",), "/sign-in/enter", sign_in.enter, role="public", personal=False)
        yield PageRoute("sign_out", ("POST",), "/sign-out", sign_in.leave, role="viewer", personal=False)


def _core_routes() -> Iterator[PageRoute]:
    yield PageRoute("static", ("GET",), "/-/static/{hash}/{file}", _static, role="public", personal=False)
    yield PageRoute("alive", ("GET",), "/-/alive", _alive, role="public", personal=False)
    yield PageRoute("overview", ("GET",), "/", overview.overview, role="viewer", personal=False)
    yield PageRoute("needs", ("GET",), "/needs", needs.needs, role="viewer", personal=False)
    yield PageRoute("needs_bulk", ("GET", "POST"), "/needs/bulk", bulk_pages.of_needs, role="operator", personal=False,
                    acts=True)  # fmt: skip
    yield PageRoute("needs_ticked", ("GET", "POST"), "/needs/ticked", ticked.of_needs, role="operator", personal=False,
                    acts=True)  # fmt: skip
    yield PageRoute("jobs_ticked", ("GET", "POST"), "/jobs/ticked", ticked.of_jobs, role="operator", personal=False,
                    acts=True)  # fmt: skip
    yield PageRoute("desk", ("GET",), "/decisions", desk.desk, role="viewer", personal=False)
    yield PageRoute("numbers", ("GET",), "/numbers", numbers.numbers, role="viewer", personal=False)
    yield PageRoute("numbers_file", ("GET",), "/numbers.csv", numbers_file.numbers_file, role="viewer", personal=False)
    yield PageRoute("why", ("GET", "POST"), "/why", story.why, role="viewer", personal=False, acts=True)
    yield PageRoute("jobs", ("GET",), "/jobs", jobs.jobs, role="viewer", personal=False)
    yield PageRoute("jobs_bulk", ("GET", "POST"), "/jobs/bulk", bulk_pages.of_jobs, role="operator", personal=False,
                    acts=True)  # fmt: skip
    yield PageRoute("job", ("GET",), "/jobs/{id}", story.job, role="viewer", personal=False)
    yield PageRoute("job_reveal", ("POST",), "/jobs/{id}/reveal", story.reveal, role="viewer", personal=True, acts=True)
    for job_action in JOB_ACTIONS:
        yield PageRoute(
            f"job_{job_action.name}", ("GET", "POST"), f"/jobs/{{id}}/{job_action.name}",
            job_action_view(job_action), role=job_action.role, personal=False, acts=True,
        )  # fmt: skip
    yield PageRoute("queues", ("GET",), "/queues", lists.queues, role="viewer", personal=False)
    yield PageRoute("workers", ("GET",), "/workers", lists.workers, role="viewer", personal=False)
    yield PageRoute("schedules", ("GET",), "/schedules", lists.schedules, role="viewer", personal=False)
    yield PageRoute("limits", ("GET",), "/limits", lists.limits, role="viewer", personal=False)
    yield PageRoute("bulks", ("GET",), "/bulk", bulk_pages.bulks, role="viewer", personal=False)
    yield PageRoute("bulk", ("GET",), "/bulk/{id}", bulk_pages.bulk, role="viewer", personal=False)
    yield PageRoute("health", ("GET",), "/health", health.health, role="viewer", personal=False)
    yield PageRoute("audit", ("GET",), "/audit", audit.audit, role="viewer", personal=False)
    yield PageRoute("settings", ("GET", "POST"), "/settings", settings.settings, role="viewer", personal=False)


def _static(visit: Visit) -> PageAnswer:
    file = visit.site.renderer.static.find(visit.values["hash"], visit.values["file"])
    if file is None:
        return PageAnswer(404)
    body, kind = file
    return PageAnswer(200, body, kind, (("cache-control", FOREVER),))


def _alive(visit: Visit) -> PageAnswer:
    """That the process answers; nothing of the database."""
    return PageAnswer(200, b"alive\n", "text/plain; charset=utf-8", (("cache-control", "no-store"),))
