"""What an app calls: enqueue a job in its own transaction, and act on it afterwards by its key."""
