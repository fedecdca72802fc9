"""Placers that try many placements: annealing, sampling, rollouts."""
