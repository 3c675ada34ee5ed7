"""Bulk actions: one action on many jobs, frozen at its preview, worked off in chunks."""
