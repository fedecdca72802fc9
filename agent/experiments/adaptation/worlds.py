"""Worlds: simulated truths whose costs differ from those that a search knows."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from agent.adaptation.corrections import CorrectedProblem
from envs.costs.op_classes import CLASSES, op_class
from envs.problem import Problem
from envs.simulator.simulate import simulate_problem
from graphs.system.array_types import FloatArray, IntArray

MOST, MOST_OF_OP = 1.5, 1.1
"""Greatest factors by which a class, device or link is wrong, and a single op beside these."""
MOST_SLOWDOWN = 1.5
NOISE = 0.02
CONTENTION = ("as simulated", "other sharing of links", "copies slow ops")
"""Rules of a world; the second one lets transfers contend by sender instead of by pair, or the reverse."""


def draw_world(problem: Problem, contention: str, rng: np.random.Generator) -> Problem:
    """Draws factors, log-uniform, for each class of ops, device, pair of devices, op and for the latency."""
    graph, cluster, n = problem.graph, problem.cluster, problem.n_devices

    def factors(shape: tuple[int, ...], most: float = MOST) -> FloatArray:
        drawn: FloatArray = most ** rng.uniform(-1, 1, shape)
        return drawn

    of_class = dict(zip(CLASSES, factors((len(CLASSES),)), strict=True))
    work = np.array([of_class[op_class(kind)] for kind in graph.op_types])[:, None]
    upper = np.triu(factors((n, n)), 1)
    seconds = problem.op_seconds * work * factors((n,)) * factors((graph.n_ops, 1), MOST_OF_OP)
    world = replace(
        cluster,
        bytes_per_s=cluster.bytes_per_s * (upper + upper.T + np.eye(n)),
        latency_s=cluster.latency_s * factors((1,)),
    )
    if contention == CONTENTION[1]:
        world = replace(world, sharing="egress" if cluster.sharing == "pair" else "pair")
    if contention == CONTENTION[2]:
        slowdown = float(rng.uniform(1, MOST_SLOWDOWN))
        devices = (replace(device, overlap_slowdown=slowdown) for device in cluster.devices)
        world = replace(world, devices=tuple(devices))
    return CorrectedProblem(graph, world, seconds)


@dataclass
class Meter:
    """Measures placements in a world, with noise.

    Attributes:
        devices_of, measured_s, true_s: of each measurement; infinite seconds if the memory does not suffice.
    """

    world: Problem
    rng: np.random.Generator
    devices_of: list[IntArray] = field(default_factory=list)
    measured_s: list[float] = field(default_factory=list)
    true_s: list[float] = field(default_factory=list)

    def __call__(self, device_of: IntArray) -> float:
        """Measures a placement; returns seconds, NaN if it cannot be run."""
        step = simulate_problem(self.world, device_of)
        true_s = step.total_s if step.fits else np.inf
        self.devices_of.append(device_of)
        self.true_s.append(true_s)
        self.measured_s.append(true_s * float(np.exp(NOISE * self.rng.standard_normal())))
        return self.measured_s[-1] if step.fits else np.nan

    def answer_s(self, count: int) -> float:
        """Returns the true step of the placement that was measured best among the first `count`."""
        return self.true_s[int(np.argmin(self.measured_s[:count]))]
