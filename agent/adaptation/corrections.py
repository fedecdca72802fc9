"""Corrections of simulated costs: factors of op classes, devices and links, and how far off they may be."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from envs.cluster.cluster import COPIES, MAX_SLOWDOWN
from envs.costs.op_classes import op_class
from envs.problem import Problem
from envs.simulator.simulate import step_times_s
from graphs.system.array_types import FloatArray, IntArray

SPREADS = {
    "all": 0.2,
    "launch": 0.3,
    "latency": 0.3,
    "overlap": 0.2,
    "class": 0.2,
    "device": 0.2,
    "link": 0.3,
    "pair": 0.15,
}
"""Standard deviation of the logarithm of each kind of factor before any measurement.

Held-out ops of boards without measurements of their own are wrong by 10 to 40 % in the 90th percentile, whole
steps by 5 to 26 %, transfers by 2 to 15 %, and by datasheets by 30 to 87 % (the pages `costs_of_ops`,
`costs_of_steps` and `costs_of_links`).
"""
MOST = np.log(10.0)
"""Greatest logarithm of a factor, either way."""
MOST_PAIRED = 4
"""Devices up to which each pair has a factor of its own; with more, each sender has."""


@dataclass(frozen=True, eq=False)
class Corrections:
    """The factors by which the costs of a problem may be wrong.

    There is one factor each for all costs, launches, latencies, and the slowdown of ops by copies. There are
    others for the classes of ops, devices, links of about equal bandwidth, and pairs of devices.

    Attributes:
        problem: problem with the costs to correct.
    """

    problem: Problem

    @cached_property
    def spreads(self) -> FloatArray:
        """Standard deviation of the logarithm of each factor before any measurement, (n_factors,)."""
        return np.repeat(list(SPREADS.values()), self._sizes)

    def of_kind(self, factors: FloatArray) -> dict[str, FloatArray]:
        """Splits an array of all factors, (n_factors,), into views by kind."""
        return dict(zip(SPREADS, np.split(factors, np.cumsum(self._sizes)[:-1]), strict=True))

    def corrected(self, logs: FloatArray) -> Problem:
        """Returns the problem with corrected costs.

        Args:
            logs: logarithms of the factors, (n_factors,).
        """
        of = self.of_kind(np.exp(np.clip(logs, -MOST, MOST)))
        problem, cluster = self.problem, self.problem.cluster
        (link_of, pair_of), launch = self._links, float(of["all"][0] * of["launch"][0])
        work_s = (problem.op_seconds - self._launch_s) * of["class"][self._class_of][:, None] * of["device"]
        devices = cluster.devices
        overlap = float(of["overlap"][0]) if cluster.schedule == "program" else 1.0
        slowdowns = [max(1.0, min(device.overlap_slowdown * overlap, MAX_SLOWDOWN)) for device in devices]
        if slowdowns != [device.overlap_slowdown for device in devices]:
            pairs = zip(devices, slowdowns, strict=True)
            devices = tuple(replace(device, overlap_slowdown=slowdown) for device, slowdown in pairs)
        return replace(
            problem,
            cluster=replace(
                cluster,
                devices=devices,
                bytes_per_s=cluster.bytes_per_s / (of["all"] * of["link"][link_of] * of["pair"][pair_of]),
                latency_s=cluster.latency_s * of["all"] * of["latency"],
                issue_s=cluster.issue_s * launch,
                op_gap_s=cluster.op_gap_s * launch,
                transfer_gap_s=cluster.transfer_gap_s * launch,
            ),
            seconds=self._launch_s * launch + work_s * of["all"],
        )

    def log_steps(self, logs: FloatArray, devices_of: IntArray) -> FloatArray:
        """Simulates placements with corrected costs; returns the logarithms of their step times, (n,)."""
        return np.log(step_times_s(self.corrected(logs), devices_of))

    @cached_property
    def _sizes(self) -> list[int]:
        """Number of factors of each kind, in the order of `SPREADS`."""
        link_of, pair_of = self._links
        counts = [self._class_of.max(), self.problem.n_devices - 1, link_of.max(), pair_of.max()]
        return [1, 1, 1, 1, *(int(count) + 1 for count in counts)]

    @cached_property
    def _launch_s(self) -> FloatArray:
        """Seconds of each op that launching takes, (n_ops, n_devices)."""
        launch_s = [device.launch_s for device in self.problem.cluster.devices]
        return np.minimum(self.problem.op_seconds, launch_s)

    @cached_property
    def _class_of(self) -> IntArray:
        """Number of the class of each op among those that take time, (n_ops,)."""
        takes_time = self.problem.op_seconds.any(axis=1)
        names = np.array([op_class(kind) for kind in self.problem.graph.op_types])
        return np.unique(np.where(takes_time, names, names[takes_time.argmax()]), return_inverse=True)[1]

    @cached_property
    def _links(self) -> tuple[IntArray, IntArray]:
        """Number of the kind of link, by bandwidth, and of the pair between two devices, both (n, n)."""
        n = self.problem.n_devices
        rows, columns = np.indices((n, n))
        high, low = np.maximum(rows, columns), np.minimum(rows, columns)
        is_link = rows != columns
        pair_of = np.where(is_link, rows if n > MOST_PAIRED else high * (high - 1) // 2 + low, 0)
        link_of = np.zeros((n, n), dtype=np.int64)
        speeds = np.rint(np.log2(self.problem.cluster.bytes_per_s[is_link]))
        link_of[is_link] = np.unique(speeds, return_inverse=True)[1]
        return link_of, pair_of


def models_of(problem: Problem) -> list[Corrections]:
    """Lists models of the costs: with the rules of the cluster, and with other rules of its links."""
    cluster = problem.cluster
    others = [replace(cluster, sharing=rule) for rule in ("egress", "pair") if rule != cluster.sharing]
    if cluster.schedule == "program" and cluster.transfer_per == "destination":
        others += [replace(cluster, copies=rule) for rule in COPIES if rule != cluster.copies]
    if cluster.n_devices == 1:
        others = []
    return [Corrections(replace(problem, cluster=rules)) for rules in (cluster, *others)]
