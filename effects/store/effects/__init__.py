"""One effect, whatever its job: found by its key."""
