"""The peers of the benchmarks: the same work in plain PyTorch."""
