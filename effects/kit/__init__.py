"""What is not about jobs: HTTP under a deadline, guarded addresses, files, text, the process.

It knows errors and outcomes alone.
"""
