"""What a worker loads that is to be struck while it delivers: files of more than 1,000 bytes go in parts."""

from __future__ import annotations

from effects_reports.transport import upload
from tests.reports.crash_app import make

upload.PART_BYTES = 1_000
app = make()
