"""Who is not written to, and by which rules an address comes to be."""
