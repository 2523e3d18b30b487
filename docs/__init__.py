"""The pages of the documentation, and the one command that writes their tables: `python -m docs --write`."""
