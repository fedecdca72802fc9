"""The environment: an agent walks over the ops of a graph and chooses a device for each."""

CONSTRUCT, IMPROVE = MDPS = ("construct", "improve")
"""Decision processes: place every op once; move the ops of a complete placement."""

FREE_MEMORY, EVERY_DEVICE = MASKS = ("memory", "none")
"""Masks: offer the devices with free memory for the op at hand; offer every device."""
