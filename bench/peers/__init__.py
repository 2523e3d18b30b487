"""What the kit is measured against: the same work as people write it."""
