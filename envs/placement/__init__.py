"""The environment: an agent walks over the ops of a graph and chooses a device for each.

The kernels share these arguments, and `p`, `timeline`, `device_of`, `op`, `device`, `source` and `tensor` of
`envs.simulator`. They only read them, unless their own docstrings say otherwise:

    packed: `PackedProblems` that the episodes are over; `m` and `p` are the arrays of one of them.
    m: `MdpArrays`.
    episodes: `Episodes`; `episode` is one `Episode` of them.
    rules: `MdpRules`.
    scratch: `CandidateScratch`; its `rollout` is the `RolloutScratch` that rollouts call `ahead`.
    observation: `Observation`.
    features: observed features of the devices, float32 (max_devices, N_DEVICE_FEATURES).
    result: `StepResult`.
    waiting_s, updates_s: see `Episode`.
    e, unit, consumer: indices of an episode, a placement unit and an op, int.
"""

CONSTRUCT, IMPROVE = MDPS = ("construct", "improve")
"""Decision processes: place every op once; move the ops of a complete placement."""

FREE_MEMORY, EVERY_DEVICE = MASKS = ("memory", "none")
"""Masks: offer the devices with free memory for the op at hand; offer every device."""
