"""What `effects --app tests.support.file_jobs_app:app` loads in a worker's process."""

from __future__ import annotations

from tests.support.file_jobs import file_jobs_app

app = file_jobs_app()
