"""Rows of the study of orders: one per graph and training, and points of learning curves."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OrderRow:
    """The step time of a policy's placement of a graph that chose nothing.

    Attributes:
        graph: with its cluster, `GRAPH on CLUSTER`.
        ratio_to_single: greedy step time over that of the fastest single device, of the policy that is kept.
        decisions: learned from in the training, each time counted.
        cpu_s: processor seconds of the training.
    """

    arm: str
    family: str
    order: str
    seed: int
    graph: str
    ratio_to_single: float
    decisions: int
    cpu_s: float


@dataclass(frozen=True)
class Point:
    """A point of a learning curve: the mean over graphs that choose nothing, at an evaluation.

    Attributes:
        ratio_to_single: geometric mean of the greedy step time over that of the fastest single device.
    """

    arm: str
    family: str
    order: str
    seed: int
    cpu_s: float
    ratio_to_single: float
