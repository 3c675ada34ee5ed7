"""A run from its plan to its end: planned, chunk by chunk, and who is told."""
