"""The step-time simulator: numba kernels and the functions that call them.

The kernels share these arguments. They only read them, unless their own docstrings say otherwise:

    p: `ProblemArrays`.
    device_of: device of each op, int64 (n_ops,); -1 = unplaced.
    timeline: `Timeline` of the ops so far, or of a finished simulation.
    free: when each device, the host thread and each link is free, seconds, (n_clocks,): `free` of the
        timeline, or a copy.
    log: `SendLog` that gets the slots which are filled, or None.
    op, device, source, target, tensor: indices, int; `source` and `target` are devices.
    ready_s: when the inputs of the op, or the tensor to send, are ready, seconds.
    total_s: step time, seconds.
"""
