"""Experiments of many trainings: what they ask, their settings and their tables."""
