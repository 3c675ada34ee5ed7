"""effects in frameworks."""
