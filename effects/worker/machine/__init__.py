"""What a worker takes from the machine: time, waits, threads, randomness, an event loop."""
