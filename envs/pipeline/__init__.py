"""Pipelines of microbatches: schedules, stages, and the simulated step."""
