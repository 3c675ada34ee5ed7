"""The options of `Effects(…)` as type checkers and editors see them. The settings they set check their values.

The packages' own are among them, by name only. `tests/house/test_options.py` compares each with the field that it sets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict

from sqlalchemy import Engine

LogFormat: TypeAlias = Literal["text", "json"]
LogLevel: TypeAlias = Literal["DEBUG", "INFO", "WARNING", "ERROR"]


class EffectsOptions(TypedDict, total=False):
    """Single settings, each over its environment variable; None leaves that one in force.

    What each means is said by `effects.Settings`, `effects_email.EmailSettings`, `effects_webhooks.WebhookSettings` and
    `effects_reports.ReportSettings`. The options of another package are not known to type checkers: give them by the
    environment, or as `**{"name": value}`.
    """

    schema: str | None
    keys: str | None
    storage_url: str | None
    threads: int | None
    queues: str | None
    heartbeat_seconds: float | None
    lease_seconds: float | None
    poll_seconds: float | None
    grace_seconds: float | None
    retention_jobs_days: float | None
    retention_dead_days: float | None
    retention_effects_days: float | None
    retention_audit_days: float | None
    error_texts: bool | None
    log_format: LogFormat | None
    log_level: LogLevel | None

    smtp_url: str | None
    email_transports: Mapping[str, str] | None
    email_from: str | None
    templates: str | Path | None
    email_redirect: str | None
    email_hold: bool | None
    email_content_days: float | None
    unsubscribe_url: str | None
    unsubscribe_mailto: str | None

    allow_private_addresses: bool | None
    private_networks: str | None
    webhook_notice_job_type: str | None

    reports: Sequence[Any] | None  # of ReportDefinition
    report_engines: Mapping[str, Engine | str] | None
