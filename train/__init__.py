"""The harness: trains, stores and measures the runs that claims need; `pytest train` judges the claims."""
