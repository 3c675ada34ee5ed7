"""The composition root: an Effects, what it is made of, and which one a call means."""
