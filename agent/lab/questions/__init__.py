"""The declarations of experiments, one a question."""
