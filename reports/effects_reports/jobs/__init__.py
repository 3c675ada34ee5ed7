"""The job types of a report: plan, chunk, assemble, notify, cleanup and repair."""
