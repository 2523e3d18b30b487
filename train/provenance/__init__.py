"""The provenance of a result: the code that made it, found by following imports. Needs no torch."""
