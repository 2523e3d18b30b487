"""What it costs: every figure a ratio of two things timed in turns in one run. See bench/README.md."""
