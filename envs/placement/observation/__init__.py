"""Features of each candidate device for the op at hand: all that a policy sees, filled by compiled loops."""
