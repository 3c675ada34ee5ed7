"""The audit log: who did what to what, through what, why and when."""
