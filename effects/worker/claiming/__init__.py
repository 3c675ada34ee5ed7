"""From due rows to attempts that a thread can run."""
