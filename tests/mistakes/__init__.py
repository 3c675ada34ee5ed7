"""Mistakes that people make, each run for real: what it says, and how it names its cure (`docs/mistakes.md`)."""
