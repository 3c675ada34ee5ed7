"""The shop's one app."""
