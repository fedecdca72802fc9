"""Pipelines behind a door: their placers, the choice of one, its lower bound, its view and its exports."""
