"""Experiments of many trainings: their questions, settings and tables."""
