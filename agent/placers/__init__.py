"""Placers that learn nothing: heuristics, list scheduling and search; `base.PLACERS` has them by name."""
