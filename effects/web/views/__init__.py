"""The pages. A view asks the functions that commands ask, and names a template; it holds no SQL."""
