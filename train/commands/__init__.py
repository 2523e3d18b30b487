"""The commands after `python -m train`: a module each."""
