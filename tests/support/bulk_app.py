"""`tests.support.step_jobs_app:app`, whose bulk actions take the chunks of BULK_CHUNK: 200 of a few hundred are few."""

from __future__ import annotations

import os

import effects.bulk_job
from tests.support.step_jobs_app import app

__all__ = ["app"]

effects.bulk_job.CHUNK = int(os.environ["BULK_CHUNK"])
