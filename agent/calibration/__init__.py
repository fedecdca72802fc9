"""Fits of the cost model to measurements, and measurements of this machine."""
