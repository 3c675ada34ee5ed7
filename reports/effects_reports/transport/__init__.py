"""How a file leaves: into a bucket of someone else's, over connections that are vetted."""
