"""Instances of the benchmark, their best known placements, and the check of any claim."""
