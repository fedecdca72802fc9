"""Learning from searched placements before reinforcement."""
