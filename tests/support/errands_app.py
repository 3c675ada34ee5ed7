"""What `effects --app tests.support.errands_app:app` loads in a worker's process."""

import os

from tests.support.errands import errands_app

app = errands_app(time_limit_seconds=float(os.environ.get("ERRAND_SECONDS", "30")))
