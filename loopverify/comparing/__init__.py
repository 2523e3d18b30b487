"""Two models compared loop by loop (`loopverify.compare`), and one model compared with its stored trace (the pytest
fixture `looped_regression`).

Nothing here is imported with the package: `files` is all that pytest's start needs, and it works without torch.
"""
