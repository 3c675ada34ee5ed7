"""Reports: requested in your own transaction, made in chunks, resumed after any crash."""
