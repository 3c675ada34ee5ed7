"""Requests to addresses that others choose: what they may reach, vetted where the connection is opened."""
