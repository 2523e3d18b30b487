"""What is measured and claimed: the runs of a study, measurements of them, the paper's tables, and verdicts."""
