"""What single providers say: the readers of their events, and their signatures."""
