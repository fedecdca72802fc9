"""Policies in arrays: they encode, score and decide in compiled loops, and load no torch."""
