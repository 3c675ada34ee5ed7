"""Logins by OAuth 2.0 tokens: where they come from, how they are renewed, who holds them."""
