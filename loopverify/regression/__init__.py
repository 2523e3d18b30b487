"""A stored trace of a looped model, beside the test that guards it. The pytest fixture is `looped_regression`.

Nothing here is imported with the package: `files` is all that pytest's start needs, and it does without torch.
"""
