"""Masks: the devices that are offered for the op at hand."""

from __future__ import annotations

from graphs.system.jit import kernel


@kernel
def fill_mask(m, p, episode, op, rules, mask):
    """Marks the devices with free memory for the unit of an op, or all; one that is there already may stay.

    Args:
        m: `MdpArrays`. p: `ProblemArrays`. episode: `Episode`.
        op: index of the op, int.
        rules: `MdpRules`; whether the memory counts.
        mask: int8 (max_devices,); written.

    Returns:
        Whether there is such a device, bool.
    """
    any_free = False
    footprint = m.footprint_bytes[m.unit_of[op]]
    for device in range(len(mask)):
        mask[device] = 0
        if device < len(p.memory):
            stays = episode.device_of[op] == device
            if stays or not rules.masks or episode.load[device] + footprint <= p.memory[device]:
                mask[device] = 1
                any_free = True
    return any_free
