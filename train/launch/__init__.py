"""Who runs what where: one run into the store, many on this machine or on a cluster, and how people watch them."""
