"""What a page says after an action led to it: a closed list, by a word in the address."""

from __future__ import annotations

from effects.web.visit import Visit

NOTICES = {
    "cancelled": "Cancelled.",
    "cancel_requested": "It is running: asked to stop, and will not be tried again.",
    "due": "It is due now.",
    "requeued": "Requeued: this is the new job.",
    "mark-done": "Recorded as done, on your word.",
    "give-up": "Left unknown.",
    "ignored": "Ignored.",
    "queue_pause": "The queue is paused.",
    "queue_resume": "The queue runs again.",
    "limit_pause": "The limit key is paused.",
    "limit_resume": "The limit key runs again.",
    "schedule_pause": "The schedule is paused.",
    "schedule_resume": "The schedule runs again from its next slot on.",
    "schedule_run": "A job was enqueued for this moment.",
    "worker_drain": "The worker will drain from its next heartbeat on.",
    "settings": "Saved.",
}


def notice(visit: Visit) -> str | None:
    """The sentence about what was just done."""
    return NOTICES.get(visit.query.get("did", ""))
