"""Keys, the sealing of sensitive values with them, and signatures."""
