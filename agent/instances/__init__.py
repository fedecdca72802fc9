"""Instances of the benchmark and their best known placements."""
