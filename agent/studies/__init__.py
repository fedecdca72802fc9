"""Studies: many trainings with some settings varied."""
