"""Claiming: which jobs a worker may take, and taking them."""
