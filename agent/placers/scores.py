"""Columns of the scores of placements: rows of an array, or the entries of a tuple."""

OVER_BYTES, TOTAL_S = range(2)
"""Bytes over the memory limits of all devices, and step time in seconds; a smaller tuple is better."""
