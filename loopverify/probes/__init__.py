"""Read-only measurements on a live model: a trace (or a model) in, a frozen record out."""
