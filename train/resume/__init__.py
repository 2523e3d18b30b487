"""Stopping and resuming a run: the signals that stop it, and checkpoints with its complete state."""
