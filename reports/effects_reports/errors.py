"""What goes wrong with reports, by what can be done about it.

ConfigurationError
└─ DefinitionInvalid   a definition is wrong: raised when it is registered, names the argument
EnqueueError
└─ ReportInvalid       a request is wrong: unknown report, a format it does not offer
    ├─ ParamsInvalid   its params do not fit the report
    └─ BucketInvalid   a bucket's name, address or credentials, or the name of an object in it
JobNotFound
├─ ReportNotFound      there is no such run (404)
└─ BucketNotFound      there is no such bucket (404)
JobStateError
└─ ReportStateError    the state of the run does not allow this: it has ended, is not ready, its file is gone (409)
EffectsError
└─ LinkInvalid         a download link is not ours, was altered, or is another person's
    └─ LinkExpired     it was ours: its time is over
Refused
└─ ReportRefused       planned and refused: no unique key, too many rows, storage that cannot be written
"""

from __future__ import annotations

from dataclasses import dataclass

from effects import ConfigurationError, EffectsError, EnqueueError, JobNotFound, JobStateError, Refused


class DefinitionInvalid(ConfigurationError):
    """A report's definition is wrong."""


class ReportInvalid(EnqueueError):
    """The report cannot be requested like this; nothing was written."""


class ParamsInvalid(ReportInvalid):
    """The params do not fit the report; nothing was written."""


class PasswordUnfit(ReportInvalid):
    """The password of an encrypted file cannot be used; nothing was written."""


class PasswordUnavailable(ReportInvalid):
    """The password of an encrypted file is not to be had now; nothing was written."""


class BucketInvalid(ReportInvalid):
    """A bucket, or the name of an object in it, cannot be used like this; nothing was written."""


class ReportNotFound(JobNotFound):
    """There is no such run of a report."""

    listed_by = "effects reports list"


class BucketNotFound(JobNotFound):
    """There is no such bucket."""

    listed_by = "effects reports buckets list"


class ReportStateError(JobStateError):
    """The state of the run does not allow this."""


class LinkInvalid(EffectsError):
    """The download link is not valid."""


class LinkExpired(LinkInvalid):
    """The download link has expired: ask for a new one."""


@dataclass(eq=False)
class ReportRefused(Refused):
    """The report was planned and refused; no file was produced."""

    code: str = "report_refused"


def no_run(run_id: str) -> ReportNotFound:
    """The error for an id that no run has."""
    return ReportNotFound(f"there is no run {run_id!r} of a report")
