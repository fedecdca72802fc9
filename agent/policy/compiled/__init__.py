"""Policies in arrays: they score and decide in compiled loops, which load no torch."""
