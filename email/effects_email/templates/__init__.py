"""Templates: found as files, rendered, and checked."""
