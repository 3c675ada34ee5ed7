"""A job's rows once it is written: release, settle, rescue."""
