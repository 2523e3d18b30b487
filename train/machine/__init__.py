"""What a run is computed on: a device and its precision, and processes that work together."""
