"""Benchmarks: every figure is a ratio of two interleaved timings from one run. See bench/README.md."""
