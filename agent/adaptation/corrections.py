"""Corrections of simulated costs: factors of op classes, devices and links, and what is known of them before
any step is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from envs.cluster.cluster import COPIES, SHARING
from envs.costs.op_classes import op_class
from envs.problem import Problem
from envs.simulator.simulate import step_time_s
from graphs.system.array_types import FloatArray, IntArray

SPREADS = {
    "all": 0.2,
    "launch": 0.3,
    "latency": 0.3,
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
REACH = 0.1
"""Share of the work of a step whose move to other devices makes the errors of two placements differ."""
MOST = np.log(10.0)
"""Greatest logarithm of a factor, either way."""


@dataclass(frozen=True, eq=False)
class CorrectedProblem(Problem):
    """A problem whose ops take given seconds.

    Attributes:
        seconds: of every op on every device, (n_ops, n_devices).
    """

    seconds: FloatArray

    def _check_times(self) -> None:
        """Checks nothing: the seconds are those of a problem, times a factor."""

    @cached_property
    def op_seconds(self) -> FloatArray:
        """The seconds of every op on every device, (n_ops, n_devices)."""
        return self.seconds


@dataclass(frozen=True, eq=False)
class Corrections:
    """The factors by which the costs of a problem may be wrong.

    Arrays of logarithms of factors are (n_factors,), in the order of `names`.

    Attributes:
        problem: with the costs that are corrected.
        kinds: kinds of factors, of `SPREADS`; others stay 1.
    """

    problem: Problem
    kinds: Sequence[str] = tuple(SPREADS)

    @cached_property
    def names(self) -> list[tuple[str, str]]:
        """Kind and name of each factor."""
        found = {"all": ["all"], "launch": ["launch"], "latency": ["latency"]}
        found["class"] = self._classes[0]
        found["device"] = [device.name for device in self.problem.cluster.devices]
        found["link"], found["pair"] = ([str(number) for number in range(of.max() + 1)] for of in self._links)
        return [(kind, name) for kind in self.kinds for name in found[kind]]

    @cached_property
    def spreads(self) -> FloatArray:
        """Standard deviation of the logarithm of each factor before any measurement, (n_factors,)."""
        return np.array([SPREADS[kind] for kind, _ in self.names])

    def corrected(self, logs: FloatArray) -> Problem:
        """Returns the problem with corrected costs.

        Args:
            logs: logarithms of the factors, (n_factors,).
        """
        of = self._of_kind(np.exp(np.clip(logs, -MOST, MOST)))
        problem, cluster = self.problem, self.problem.cluster
        launch_s, (_, class_of), (link_of, pair_of) = self._launch_s, self._classes, self._links
        work_s = (problem.op_seconds - launch_s) * of["class"][class_of][:, None] * of["device"]
        host = of["all"] * of["launch"]
        return CorrectedProblem(
            problem.graph,
            replace(
                cluster,
                bytes_per_s=cluster.bytes_per_s / (of["all"] * of["link"][link_of] * of["pair"][pair_of]),
                latency_s=cluster.latency_s * of["all"] * of["latency"],
                issue_s=cluster.issue_s * float(host[0]),
                op_gap_s=cluster.op_gap_s * float(host[0]),
                transfer_gap_s=cluster.transfer_gap_s * float(host[0]),
            ),
            launch_s * host + work_s * of["all"],
        )

    def log_steps(self, logs: FloatArray, devices_of: IntArray) -> FloatArray:
        """Simulates placements with corrected costs; returns the logarithms of their step times, (n,)."""
        problem = self.corrected(logs)
        found: FloatArray = np.log([step_time_s(problem, device_of) for device_of in devices_of])
        return found

    def _of_kind(self, factors: FloatArray) -> dict[str, FloatArray]:
        found = {kind: np.ones(1) for kind in SPREADS}
        found["class"] = np.ones(len(self._classes[0]))
        found["link"], found["pair"] = (np.ones(of.max() + 1) for of in self._links)
        kinds = np.array([kind for kind, _ in self.names])
        return found | {kind: factors[kinds == kind] for kind in self.kinds}

    @cached_property
    def _launch_s(self) -> FloatArray:
        launch_s = np.array([device.launch_s for device in self.problem.cluster.devices])
        found: FloatArray = np.minimum(self.problem.op_seconds, launch_s)
        return found

    @cached_property
    def _classes(self) -> tuple[list[str], IntArray]:
        """Classes of the ops that take time, and the number of each op's class, (n_ops,)."""
        of = [op_class(kind) for kind in self.problem.graph.op_types]
        names = sorted({of[op] for op in np.flatnonzero(self.problem.op_seconds.max(axis=1))}) or ["other"]
        number = {name: index for index, name in enumerate(names)}
        return names, np.array([number.get(name, 0) for name in of], dtype=np.int64)

    @cached_property
    def _links(self) -> tuple[IntArray, IntArray]:
        """Number of the link of each pair of devices among links alike, and of the pair, both (n, n).

        If there are more pairs than `MOST_PAIRS`, the links of a sender count as one.
        """
        cluster, n = self.problem.cluster, self.problem.n_devices
        rows, columns = np.indices((n, n))
        alike = np.stack([cluster.bytes_per_s, cluster.latency_s, cluster.n_half_matrix], axis=-1)
        alike[np.eye(n, dtype=bool)] = alike[0, -1]
        link_of = np.unique(alike.reshape(n * n, 3), axis=0, return_inverse=True)[1].reshape(n, n)
        low, high = np.minimum(rows, columns), np.maximum(rows, columns)
        pair_of = rows if n > MOST_PAIRED else high * (high - 1) // 2 + low
        pair_of[np.eye(n, dtype=bool)] = 0
        return link_of, pair_of


MOST_PAIRED = 4
"""Devices up to which each pair has a factor of its own; with more, each sender has."""


def likeness(problem: Problem, devices_of: IntArray, others: IntArray) -> FloatArray:
    """Compares placements; returns 1 for equal ones, less the more work is elsewhere, (n, n_others)."""
    work_s = problem.op_seconds.mean(axis=1)
    share = work_s / work_s.sum()
    apart = np.stack([(devices_of != other) @ share for other in others], axis=1)
    found: FloatArray = np.exp(-apart / REACH)
    return found


def models_of(problem: Problem) -> list[Corrections]:
    """Lists models of the costs: with the rules of the cluster, and with other rules of its links."""
    graph, cluster = problem.graph, problem.cluster
    others = [replace(cluster, sharing=rule) for rule in SHARING if rule != cluster.sharing]
    if cluster.schedule == "program" and cluster.transfer_per == "destination":
        others += [replace(cluster, copies=rule) for rule in COPIES if rule != cluster.copies]
    if cluster.n_devices == 1:
        others = []
    return [Corrections(each) for each in (problem, *(Problem(graph, other) for other in others))]
