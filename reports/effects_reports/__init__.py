"""Reports: requested in your own transaction, made in chunks, resumed after any crash."""

from typing import TYPE_CHECKING

from effects.extend import lazy

if TYPE_CHECKING:
    from effects_reports.admin import RepairCounts, cancel_report, repair_reports, resume_report, rewind_report
    from effects_reports.api import ReportStatus, find_report, list_reports, report_status, request_report
    from effects_reports.async_api import request_report_async, subscribe_async, unsubscribe_async
    from effects_reports.definitions.decorator import report
    from effects_reports.definitions.definition import ReportDefinition
    from effects_reports.definitions.file_sql import file_report
    from effects_reports.definitions.several_sheets import workbook_report
    from effects_reports.definitions.sql_text import sql_report
    from effects_reports.delivery.buckets import (
        BucketCredentials,
        CustomerBucket,
        add_bucket,
        bucket_notice,
        list_buckets,
        remove_bucket,
        rotate_bucket,
    )
    from effects_reports.delivery.mail import mail_notice
    from effects_reports.delivery.subscriptions import (
        Subscription,
        list_subscriptions,
        pause_subscription,
        resume_subscription,
        subscribe,
        unsubscribe,
    )
    from effects_reports.errors import (
        BucketInvalid,
        BucketNotFound,
        DefinitionInvalid,
        LinkExpired,
        LinkInvalid,
        ParamsInvalid,
        ReportInvalid,
        ReportNotFound,
        ReportRefused,
        ReportStateError,
    )
    from effects_reports.explanation import ReportExplanation, explain_report
    from effects_reports.formats.sheets.options import Workbook
    from effects_reports.results.downloads import download_app
    from effects_reports.results.links import download_url
    from effects_reports.results.preview import ReportPreview, preview_report
    from effects_reports.results.result_file import open_result
    from effects_reports.runs.notify import Notify
    from effects_reports.runs.progress import Progress
    from effects_reports.source.paging import Cursor, RowPage
    from effects_reports.source.replica import Replica
    from effects_reports.source.since import Since
    from effects_reports.writing import ReportReceipt
else:
    __getattr__, __dir__ = lazy.names(
        __name__,
        {
            "effects_reports.admin": "RepairCounts, cancel_report, repair_reports, resume_report, rewind_report",
            "effects_reports.api": "ReportStatus, find_report, list_reports, report_status, request_report",
            "effects_reports.async_api": "request_report_async, subscribe_async, unsubscribe_async",
            "effects_reports.delivery.buckets": (
                "BucketCredentials, CustomerBucket, add_bucket, bucket_notice, list_buckets, remove_bucket, "
                "rotate_bucket"
            ),
            "effects_reports.definitions.decorator": "report",
            "effects_reports.definitions.definition": "ReportDefinition",
            "effects_reports.delivery.mail": "mail_notice",
            "effects_reports.results.downloads": "download_app",
            "effects_reports.errors": (
                "BucketInvalid, BucketNotFound, DefinitionInvalid, LinkExpired, LinkInvalid, ParamsInvalid, "
                "ReportInvalid, ReportNotFound, ReportRefused, ReportStateError"
            ),
            "effects_reports.explanation": "ReportExplanation, explain_report",
            "effects_reports.definitions.file_sql": "file_report",
            "effects_reports.formats.sheets.options": "Workbook",
            "effects_reports.results.links": "download_url",
            "effects_reports.runs.notify": "Notify",
            "effects_reports.results.preview": "ReportPreview, preview_report",
            "effects_reports.runs.progress": "Progress",
            "effects_reports.results.result_file": "open_result",
            "effects_reports.source.paging": "Cursor, RowPage",
            "effects_reports.source.replica": "Replica",
            "effects_reports.source.since": "Since",
            "effects_reports.definitions.sql_text": "sql_report",
            "effects_reports.delivery.subscriptions": (
                "Subscription, list_subscriptions, pause_subscription, resume_subscription, subscribe, unsubscribe"
            ),
            "effects_reports.definitions.several_sheets": "workbook_report",
            "effects_reports.writing": "ReportReceipt",
        },
    )

__all__ = [
    "BucketCredentials",
    "BucketInvalid",
    "BucketNotFound",
    "Cursor",
    "CustomerBucket",
    "DefinitionInvalid",
    "LinkExpired",
    "LinkInvalid",
    "Notify",
    "ParamsInvalid",
    "Progress",
    "RepairCounts",
    "Replica",
    "ReportDefinition",
    "ReportExplanation",
    "ReportInvalid",
    "ReportNotFound",
    "ReportPreview",
    "ReportReceipt",
    "ReportRefused",
    "ReportStateError",
    "ReportStatus",
    "RowPage",
    "Since",
    "Subscription",
    "Workbook",
    "add_bucket",
    "bucket_notice",
    "cancel_report",
    "download_app",
    "download_url",
    "explain_report",
    "file_report",
    "find_report",
    "list_buckets",
    "list_reports",
    "list_subscriptions",
    "mail_notice",
    "open_result",
    "pause_subscription",
    "preview_report",
    "remove_bucket",
    "repair_reports",
    "report",
    "report_status",
    "request_report",
    "request_report_async",
    "resume_report",
    "resume_subscription",
    "rewind_report",
    "rotate_bucket",
    "sql_report",
    "subscribe",
    "subscribe_async",
    "unsubscribe",
    "unsubscribe_async",
    "workbook_report",
]
