"""The environment: an agent walks over the ops of a graph and chooses a device for each."""

from graphs.system.errors import InputError

CONSTRUCT, IMPROVE = MDPS = ("construct", "improve")
"""Decision processes: place every op once; move the ops of a complete placement."""

FREE_MEMORY, EVERY_DEVICE = MASKS = ("memory", "none")
"""Masks: offer the devices with free memory for the op at hand; offer every device."""


class MdpError(InputError):
    """Episodes that cannot be: no problems, nothing to place, or a setting or decision that is none."""
