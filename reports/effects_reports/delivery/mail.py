"""A notice by templated mail: the file attached, or a link to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from effects.extend import arguments, optional, require
from effects_reports.errors import ReportInvalid
from effects_reports.runs.notify import NOTICE_LINK_SECONDS, Notify

_CONTEXT = {
    name: f"{{{name}}}" for name in ("run_id", "report", "state", "filename", "rows", "bytes", "link", "attachment")
}


def mail_notice(
    template: str,
    to: str | Sequence[str],
    *,
    link_to: str,
    attach_bytes_max: int = 0,
    link_seconds: float = NOTICE_LINK_SECONDS,
    link_uses: int | None = None,
    link_principal: str | None = None,
    context: Mapping[str, Any] | None = None,
    on: Sequence[str] = ("ready",),
    **payload: Any,
) -> Notify:
    """A templated mail when a run has ended: `Notify(job_type="email.compose", …)`, written out.

    One run sends it once: the mail's key is derived from the run's id, and repeated only after `resume`. Templates have
    `run_id`, `report`, `state`, `filename`, `rows`, `bytes`; and `link`, empty if the file is attached (`attachment` is
    then the name of its object, else empty).

    Args:
        template: of effects-email.
        to: one recipient, or several of one mail.
        link_to: where `download_app` is mounted, as for `download_url`.
        attach_bytes_max: a file of at most so many bytes is attached instead. Default 0: never.
        link_seconds: how long the link is good, from when the run is ready on. Default 3 days, at most 7.
        link_uses: for how many downloads; default any number.
        link_principal: for whom alone, as for `download_url`.
        context: more for the template; placeholders in it are filled in.
        on: `ready` (default), `failed` or both.
        payload: other fields of `email.compose`, such as `locale` and `category`.

    Raises:
        ReportInvalid: `context` is no mapping. The rest `request_report` checks.
    """
    require("context", context, optional(arguments.mapping), ReportInvalid)
    files = {"attachments": [{"name": "{attachment}", "filename": "{filename}"}]} if attach_bytes_max else {}
    return Notify(
        job_type="email.compose",
        payload={
            "template": template, "to": to, "event_id": "{run_id}:{restart}",
            "context": {**_CONTEXT, **(context or {})}, **files, **payload,
        },
        on=on, link_to=link_to, link_seconds=link_seconds, link_uses=link_uses, link_principal=link_principal,
        attach_bytes_max=attach_bytes_max,
    )  # fmt: skip
