"""Learning: PPO that places, its callbacks, and the one training function."""
