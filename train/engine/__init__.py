"""How steps are computed: the model in training, its steps, their loop, and what is watched meanwhile."""
