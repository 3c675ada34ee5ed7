"""What watches a worker's own threads, and its transactions."""
