"""The hardware of a run: device, precision, and processes that train together."""
