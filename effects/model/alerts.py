"""Alert rules as data: conditions, and the job to notify. `effects.operate.alert_check` evaluates them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, get_args

from effects.errors import ConfigurationError, PayloadInvalid
from effects.kit.arguments import require, text
from effects.kit.plain_values import require_json
from effects.kit.text.wording import described
from effects.model.registry import Registry
from effects.model.schedules import Schedule, fill_placeholders, why_unfilled

CHECK_TYPE = "effects.check_alerts"
ALERTS_SCHEDULE = Schedule("effects.alerts", CHECK_TYPE, cron="* * * * *", catch_up="none")

_NAME = re.compile(r"[a-z][a-z0-9_.-]{0,63}")
PLACEHOLDERS = ("alert", "summary", "subject", "value", "limit")


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """More than `more_than` jobs (of this type, or of any) died within `within_seconds`. Default: any in an hour."""

    more_than: int = 0
    within_seconds: float = 3600.0
    job_type: str | None = None

    @property
    def limit(self) -> float:
        return self.more_than


@dataclass(frozen=True, slots=True)
class SameError:
    """At least `times` jobs of one type share an error code: they wait to be retried, or died within `within_seconds`.

    Each pair of type and code is a subject, with episodes of its own. Default: 20 within an hour.
    """

    times: int = 20
    within_seconds: float = 3600.0
    job_type: str | None = None

    @property
    def limit(self) -> float:
        return self.times


@dataclass(frozen=True, slots=True)
class OldDueJobs:
    """A job has been due for longer than `older_than_seconds` (default 600) in this queue, or in any.

    Each queue is a subject. Jobs behind a paused or full limit key count as well.
    """

    older_than_seconds: float = 600.0
    queue: str | None = None

    @property
    def limit(self) -> float:
        return self.older_than_seconds


@dataclass(frozen=True, slots=True)
class UnresolvedFailovers:
    """A failover has left orphans, or workers that did not compare, and no one has resolved it for `after_seconds`.

    Each failover is a subject. Default: 300, within which living workers have compared what they remember.
    """

    after_seconds: float = 300.0

    @property
    def limit(self) -> float:
        return self.after_seconds


Rule: TypeAlias = DeadLetters | SameError | OldDueJobs | UnresolvedFailovers


@dataclass(frozen=True, slots=True)
class Alert:
    """Enqueue a job when a rule begins to hold: one for each episode, however often it is checked.

    An episode lasts until a check finds that the rule no longer holds; the next episode enqueues a new job.

    Args:
        name: lower case, up to 64 characters; part of the jobs' idempotency keys.
        rule: DeadLetters, SameError, OldDueJobs or UnresolvedFailovers.
        notify: name of the job type to enqueue.
        payload: a mapping that converts to its payload. In its strings `{alert}`, `{summary}`, `{subject}`,
            `{value}` and `{limit}` are filled in; another name in braces is refused.

    Raises:
        ConfigurationError: the name or a number of the rule is wrong.
    """

    name: str
    rule: Rule
    notify: str
    payload: Mapping[str, Any] = field(default_factory=lambda: {"alert": "{alert}", "summary": "{summary}"})

    def __post_init__(self) -> None:
        require("an alert: name", self.name, text, ConfigurationError)
        if not isinstance(self.rule, get_args(Rule)):
            raise ConfigurationError(f"alert {self.name!r}: rule is {described(self.rule)}; give one as DeadLetters()")
        if not _NAME.fullmatch(self.name):
            raise ConfigurationError(f"alert {self.name!r}: give a name of lower-case letters, digits, dots and dashes")
        within = getattr(self.rule, "within_seconds", 1.0)
        if within <= 0 or self.rule.limit < (0 if isinstance(self.rule, DeadLetters) else 1):
            raise ConfigurationError(f"alert {self.name!r}: a number of its rule is too small: {self.rule}")
        require_json(f"alert {self.name!r}: payload", self.payload, ConfigurationError)

    def check(self, job_types: Registry) -> None:
        """Refuse a job type that is not registered, or a payload that it would not take.

        Raises:
            ConfigurationError: names the alert and what is wrong.
        """
        if (why := why_unfilled(self.payload, PLACEHOLDERS)) is not None:
            raise ConfigurationError(f"alert {self.name!r}: {why}")
        try:
            job_types.get(self.notify).encode(self.payload_of("subject", 1.0))
        except (ConfigurationError, PayloadInvalid) as error:
            raise ConfigurationError(f"alert {self.name!r}: {error}") from None

    def summary(self, subject: str, value: float, causes: Sequence[str] = ()) -> str:
        """What is wrong, in a sentence.

        Args:
            causes: of DeadLetters, types and codes of what died.
        """
        about = f" ({subject})" if subject else ""
        match self.rule:
            case DeadLetters():
                return f"{value:,.0f} jobs died within {self.rule.within_seconds:,.0f} s{about}{_listed(causes)}"
            case SameError():
                return f"{value:,.0f} jobs share one error{about}"
            case OldDueJobs():
                return f"a job has been due for {value:,.0f} s{about}"
            case UnresolvedFailovers():
                lost = f"{value:,.0f} effects of lost jobs" if value else "a worker did not compare what it remembers"
                return f"a failover needs a person{about}: {lost}; see `effects failovers list`"

    def payload_of(self, subject: str, value: float, causes: Sequence[str] = ()) -> dict[str, Any]:
        """The payload of one episode's job."""
        words = {
            "alert": self.name,
            "summary": self.summary(subject, value, causes),
            "subject": subject,
            "value": f"{value:g}",
            "limit": f"{self.rule.limit:g}",
        }
        filled: dict[str, Any] = fill_placeholders(dict(self.payload), words)
        return filled


def _listed(causes: Sequence[str]) -> str:
    return f": {', '.join(causes)}; see `effects dead list`" if causes else ""
