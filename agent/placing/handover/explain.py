"""The bounds of a simulated step, and the time that removing each would save."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np

from envs.problem import Problem
from envs.simulator.copies import link_name, simulated_copies
from envs.simulator.data_parallel import DataParallelStep, simulate_data_parallel
from envs.simulator.fastest_single import fastest_single
from envs.simulator.simulate import StepTime, simulate_problem, step_time_s
from graphs.levels import b_level
from graphs.limits import MAX_PER_S
from graphs.system.array_types import IntArray
from graphs.system.errors import shortened

SMALL = 0.05
"""Share of the step below which a gain is no bottleneck."""
WORTH_IT = 0.02
"""Share of one device's step that a placement must save."""


@dataclass(frozen=True)
class Explanation:
    """The bounds of a step; all times are simulated seconds.

    Attributes:
        bottleneck: `memory`, `link`, `load`, `dependencies` or `compute`.
        no_copies_s: the step if copies took no time.
        critical_path_s: the longest chain of ops, each on its device, copies free.
        balanced_s: the work of all ops, spread evenly over the devices by their speed.
        link: the link that is busy longest, "" if nothing is copied.
        single: the fastest device that has the memory for all ops, None if none has.
        data_parallel: what data parallelism would do with the same devices.
        device_names: of the cluster; all names are shortened.
        fullest: device with the greatest share of its memory in use.
        fullest_share: that share at its peak.
    """

    bottleneck: str
    total_s: float
    no_copies_s: float
    critical_path_s: float
    balanced_s: float
    busy_s: tuple[float, ...]
    link: str
    link_busy_s: float
    single: str | None
    single_s: float | None
    data_parallel: DataParallelStep
    device_names: tuple[str, ...]
    fullest: str
    fullest_share: float

    @property
    def advice(self) -> str:
        """Returns what to use: `one device`, `placement` or `data parallel`; `memory` if none has the memory.

        A placement must be 2 % faster than one device, and data parallelism per batch 2 % faster than both.
        """
        found = "memory", math.inf
        if self.single_s is not None:
            found = "one device", self.single_s
        if self.bottleneck != "memory" and self.total_s <= (1.0 - WORTH_IT) * found[1]:
            found = "placement", self.total_s
        copies = self.data_parallel
        if copies.fits and copies.seconds_per_batch < (1.0 - WORTH_IT) * found[1]:
            found = "data parallel", copies.seconds_per_batch
        return found[0]

    @property
    def cause(self) -> str:
        """Returns the bottleneck; `waiting` for copies, where no link is busy for a tenth of the step."""
        waits = self.bottleneck == "link" and 10.0 * self.link_busy_s < self.total_s
        return "waiting" if waits else self.bottleneck

    @property
    def busiest(self) -> int:
        """Device that computes longest, by index."""
        return int(np.argmax(self.busy_s))


def explain(problem: Problem, device_of: IntArray) -> Explanation:
    """Finds what bounds a simulated step.

    Args:
        device_of: device index of each op, int64 (n_ops,); not checked.
    """
    step = simulate_problem(problem, device_of)
    seconds = problem.op_seconds[np.arange(problem.graph.n_ops), device_of]
    path = b_level(problem.graph, seconds, np.zeros(problem.graph.n_tensors))
    times = {
        "total_s": step.total_s,
        "no_copies_s": step_time_s(without_copies(problem), device_of),
        "critical_path_s": float(path.max(initial=0.0)),
        "balanced_s": balanced_s(problem),
    }
    link, link_busy_s = _busiest_link(problem, device_of)
    share = step.peak_bytes / problem.cluster.memory_bytes
    names = tuple(shortened(device.name) for device in problem.cluster.devices)
    single = fastest_single(problem)
    return Explanation(
        bottleneck=_bottleneck(step, times),
        busy_s=tuple(step.busy_s.tolist()),
        link=shortened(link),
        link_busy_s=link_busy_s,
        single=names[single.device] if single.fits else None,
        single_s=single.step_s if single.fits else None,
        data_parallel=simulate_data_parallel(problem),
        device_names=names,
        fullest=names[int(np.argmax(share))],
        fullest_share=float(share.max()),
        **times,
    )


def without_copies(problem: Problem) -> Problem:
    """Returns the problem with links on which copies take no time to speak of."""
    n = problem.n_devices
    devices = tuple(replace(device, overlap_slowdown=1.0) for device in problem.cluster.devices)
    cluster = replace(
        problem.cluster,
        devices=devices,
        bytes_per_s=np.full((n, n), MAX_PER_S),
        latency_s=np.zeros((n, n)),
        n_half_bytes=0.0,
        sharing="none",
        transfer_per="destination",
        transfer_gap_s=0.0,
        copies="stream",
    )
    return FreeCopies(problem.graph, cluster)


class FreeCopies(Problem):
    """A problem whose copies may be shorter than the bounds of `graphs.limits` allow."""

    def _check_times(self) -> None:
        _ = self.op_seconds


def balanced_s(problem: Problem) -> float:
    """Seconds in which all devices together do the work, if each takes its part of every op."""
    whole = problem.op_seconds.sum(axis=0)
    return float(1.0 / (1.0 / whole).sum()) if (whole > 0).all() else 0.0


def _bottleneck(step: StepTime, times: dict[str, float]) -> str:
    """Names what gives most when it is removed; where neither copies nor load give, what is left."""
    if not step.fits:
        return "memory"
    total_s, bound_s = times["total_s"], max(times["balanced_s"], times["critical_path_s"])
    gains = {"link": total_s - times["no_copies_s"], "load": times["no_copies_s"] - bound_s}
    largest = max(gains, key=gains.__getitem__)
    if gains[largest] > SMALL * total_s:
        return largest
    return "dependencies" if times["critical_path_s"] > times["balanced_s"] else "compute"


def _busiest_link(problem: Problem, device_of: IntArray) -> tuple[str, float]:
    busy_s = defaultdict[str, float](float)
    for copy in simulated_copies(problem, device_of):
        busy_s[link_name(problem, copy)] += copy.end_s - copy.start_s
    return max(busy_s.items(), key=lambda item: item[1], default=("", 0.0))
