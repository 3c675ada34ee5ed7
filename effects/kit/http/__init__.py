"""HTTP requests under one deadline, below httpcore's connections."""
