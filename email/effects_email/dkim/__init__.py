"""DKIM: keys by domain and selector, and signatures over the bytes that leave (RFC 6376, RFC 8463)."""
