"""What is kept about one address: given out to its owner, or forgotten."""
