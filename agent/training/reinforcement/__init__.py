"""Reinforcement: maskable PPO over episodes, as the last phase of a training."""
