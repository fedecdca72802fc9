"""Simulated against measured costs."""
