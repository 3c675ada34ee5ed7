"""What a job, its type, an attempt and an outcome are, and what is decided of an effect: values and pure functions."""
