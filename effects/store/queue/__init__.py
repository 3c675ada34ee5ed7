"""A job's way through the tables: enqueue, claim, settle, rescue."""
