"""The worker: claims jobs, performs them in threads, settles their outcomes, and says that it lives."""

from effects.worker.worker import DrainResult, Worker

__all__ = ["DrainResult", "Worker"]
