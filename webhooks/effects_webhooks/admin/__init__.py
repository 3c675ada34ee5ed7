"""What an operator does: manage endpoints and their secrets, and replay deliveries."""
