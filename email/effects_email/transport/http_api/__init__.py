"""Messages to a provider's HTTP API: what all of them have in common, and a module for each."""
