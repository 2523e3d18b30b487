"""Where a result comes from: the code that made it, found by following imports and told by its syntax. No torch."""
