"""What `effects --app tests.support.notes_app:app` loads in a worker's process."""

from __future__ import annotations

from tests.support.notes import notes_app

app = notes_app()
