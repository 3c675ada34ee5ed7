"""Reports: requested in your own transaction, made in chunks, resumed after any crash."""

from effects_reports.api import (
    ReportReceipt,
    ReportStatus,
    cancel_report,
    list_reports,
    report_status,
    request_report,
    resume_report,
)
from effects_reports.definition import ReportDefinition, report
from effects_reports.downloads import download_app
from effects_reports.errors import (
    DefinitionInvalid,
    LinkExpired,
    LinkInvalid,
    ReportInvalid,
    ReportNotFound,
    ReportRefused,
)
from effects_reports.explanation import Explanation, explain_report
from effects_reports.links import download_url
from effects_reports.notify import Notify
from effects_reports.progress import Progress
from effects_reports.results import open_result
from effects_reports.sweep import Swept, sweep_reports

__all__ = [
    "DefinitionInvalid",
    "Explanation",
    "LinkExpired",
    "LinkInvalid",
    "Notify",
    "Progress",
    "ReportDefinition",
    "ReportInvalid",
    "ReportNotFound",
    "ReportReceipt",
    "ReportRefused",
    "ReportStatus",
    "Swept",
    "cancel_report",
    "download_app",
    "download_url",
    "explain_report",
    "list_reports",
    "open_result",
    "report",
    "report_status",
    "request_report",
    "resume_report",
    "sweep_reports",
]
