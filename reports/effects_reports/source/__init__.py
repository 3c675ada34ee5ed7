"""The user's own tables: queries at one instant, and reading of values."""
