"""Experiments: the questions of the pages of results, how their rows are made, and how they are shown."""
