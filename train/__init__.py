"""The harness: it trains the runs that claims need, keeps and measures them; `pytest train` judges the claims."""
