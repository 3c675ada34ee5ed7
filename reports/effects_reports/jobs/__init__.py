"""The job types of a report: plan, chunk, assemble, cleanup and repair."""
