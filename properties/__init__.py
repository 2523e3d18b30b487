"""The lemmas and their edges, as properties of random blocks and readouts (Hypothesis)."""
