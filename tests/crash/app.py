"""What the workers of the kill loop load: webhooks that are tried again soon."""

from __future__ import annotations

from effects import Effects, Fixed, RetryPolicy


def impatient(app: Effects) -> Effects:
    """A lost or doubtful delivery is tried again at once instead of in five seconds."""
    app.job_types.get("webhook.deliver").retry = RetryPolicy(backoff=Fixed(0.1), max_attempts=100)
    return app


app = impatient(Effects())
