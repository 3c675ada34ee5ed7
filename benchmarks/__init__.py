"""Speed, measured beside peers and judged as ratios. `python -m benchmarks --help`."""
