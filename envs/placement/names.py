"""Names of the Markov decision processes, for configurations that load nothing else."""

CONSTRUCT, IMPROVE = MDPS = ("construct", "improve")
"""Place every op once; move the ops of a complete placement."""

FREE_MEMORY, EVERY_DEVICE = MASKS = ("memory", "none")
"""Offer the devices with free memory for the op at hand; offer every device."""
