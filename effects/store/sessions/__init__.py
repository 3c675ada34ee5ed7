"""The transactions of callers: what `session=` may be, and the connection that it stands for."""
