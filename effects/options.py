"""The options of `Effects(…)` as type checkers and editors see them. The settings they set check their values.

Those of the built-in packages are among them, by name only: a type checker reads no entry points.
`tests/house/test_options.py` compares each with the field that it sets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict

SessionsPolicy: TypeAlias = Literal["warn", "required", "off"]
LogFormat: TypeAlias = Literal["text", "json"]
LogLevel: TypeAlias = Literal["DEBUG", "INFO", "WARNING", "ERROR"]


class EffectsOptions(TypedDict, total=False):
    """Single settings, each over its environment variable; None leaves that one in force.

    `Settings` says what each means, and the settings class of each built-in package. Type checkers do not know the
    options of other packages: give those by the environment.
    """

    schema: str | None
    keys: str | None
    storage_url: str | None
    threads: int | None
    in_flight: int | None
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
    evidence_folder: str | None
    sessions: SessionsPolicy | None
    notify_in_transaction: bool | None
    log_format: LogFormat | None
    log_level: LogLevel | None

    smtp_url: str | None
    email_transports: Mapping[str, str] | None
    email_failover: str | None
    email_from: str | None
    templates: str | Path | Sequence[Path] | None
    email_redirect: str | None
    email_hold: bool | None
    email_content_days: float | None
    unsubscribe_url: str | None
    unsubscribe_mailto: str | None
    email_return_path: str | None
    email_bounce_domain: str | None
    email_nameserver: str | None
    dkim_keys: str | None

    allow_private_addresses: bool | None
    private_networks: str | None
    webhook_notice_job_type: str | None
    webhook_event_types: Sequence[Any] | None  # of EventType

    reports: Sequence[Any] | None  # of ReportDefinition
    report_engines: Mapping[str, Any] | None
    bucket_private_networks: str | None
