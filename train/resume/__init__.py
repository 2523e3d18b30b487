"""How a run stops and goes on: the signal that asks it to, and the checkpoint that holds all it needs."""
