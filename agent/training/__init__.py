"""Training: imitation, reinforcement, validation, and the folder of a run."""
