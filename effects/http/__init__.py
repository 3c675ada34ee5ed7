"""Requests to others under one deadline: what stands below httpcore's connections."""
