"""Placement of one graph: the front door, plans, what a placement hands over."""
