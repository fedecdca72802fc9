"""Answers in the words of other runtimes: which layers each device runs, and in which order."""
