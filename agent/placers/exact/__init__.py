"""Placement to proven optimality."""
