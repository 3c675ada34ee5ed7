"""`tests.support.step_jobs_app:app`, whose bulk actions take the chunks of BULK_CHUNK: 200 of a few hundred are few."""

from __future__ import annotations

import os

from effects.operate import bulk
from tests.support.step_jobs_app import app

__all__ = ["app"]

bulk.CHUNK = int(os.environ["BULK_CHUNK"])
