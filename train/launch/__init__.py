"""Starting runs: one run into the store, many on this machine or on a cluster, and human-readable progress."""
