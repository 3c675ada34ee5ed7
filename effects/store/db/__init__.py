"""The ground floor: engines, SQL words, errors, and the Store itself."""
