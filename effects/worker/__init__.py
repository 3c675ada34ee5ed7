"""The worker: claims jobs, performs them in threads, settles their outcomes, sends heartbeats."""

from effects.worker.recording.observers import Observer
from effects.worker.worker import DrainResult, Worker

__all__ = ["DrainResult", "Observer", "Worker"]
