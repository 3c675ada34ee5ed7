"""The threads, or the tasks on the event loop, that run a queue's attempts."""
