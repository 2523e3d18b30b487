"""Two models compared loop by loop (`loopverify.compare`), and one model compared with its stored trace (the pytest
fixture `looped_regression`).

Importing the package imports none of its modules: pytest needs only `files` when it starts, which works without torch.
"""
