"""The rows of workers."""
