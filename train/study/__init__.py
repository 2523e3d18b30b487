"""The runs of a study, their measurements, the paper's tables, and the verdicts on claims."""
