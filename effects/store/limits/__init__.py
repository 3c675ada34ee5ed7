"""Limit keys: their settings, their free capacity, and feedback from outcomes."""
