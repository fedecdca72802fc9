"""What a policy sees of the op at hand: features of each candidate device, filled by compiled loops."""
