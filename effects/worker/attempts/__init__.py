"""One attempt: the handler's view of it, and how its answer or exception becomes an outcome."""
