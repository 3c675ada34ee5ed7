"""A job's way through the tables once it is written: claim, settle, rescue."""
