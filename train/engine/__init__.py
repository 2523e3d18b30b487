"""The computation of training: the model in training, its steps, their loop, evaluation and monitoring."""
