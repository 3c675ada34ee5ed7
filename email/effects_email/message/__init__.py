"""A message: its addresses, header fields, files and content, and the bytes that they make."""
