"""Writing jobs in a caller's transaction: one, many, and by the function of SQL."""
