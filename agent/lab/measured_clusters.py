"""Steps that others measured on several GPUs, and their predictions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from agent.lab.pivot import Row, Rows, read_table
from envs.cluster.presets import get_cluster
from envs.pipeline.pipeline import ONE_F_ONE_B, Pipeline
from envs.pipeline.replicas import pipelined_of
from envs.problem import Problem
from graphs.io.graph_files import read_graphs, write_graphs
from graphs.op_graph import OpGraph
from graphs.system.progress import followed

BROKEN = 0.5
"""Share of the tokens a second of a comparable run below which a run counts as broken."""
GIB = 2.0**30
GPUS = 8
"""GPUs of a node."""
LENGTH = 4096


@dataclass(frozen=True)
class SweepRow:
    """A configuration of the sweep, measured and predicted.

    Attributes:
        use: `used`, `broken` or `failed`.
        measured_s, predicted_s: seconds of a step; measured is 0 if the run failed.
        measured_gib, predicted_gib: peak memory of the first GPU.
        most_gib: predicted peak memory of the fullest GPU.
        fits: whether all GPUs are predicted to have the memory.
    """

    model: str
    nodes: int
    dp: int
    pp: int
    zero: int
    mbs: int
    microbatches: int
    use: str
    measured_s: float
    predicted_s: float
    measured_gib: float
    predicted_gib: float
    most_gib: float
    fits: bool


def is_broken(run: Row, runs: Rows) -> bool:
    """Says whether a run of the sweep is left out; the rule was stated before any prediction was looked at.

    All runs of a model have the same batch. So a run is broken if it has less than half of the tokens a second
    of each GPU of another run of the same model and number of stages on as many nodes or more, or less than
    half of all tokens a second of such a run on fewer nodes: more nodes may gain little, but do not halve.

    Args:
        runs: all that ran, with those columns of the sweep.
    """
    for other in runs:
        if (other["model"], other["pp"]) == (run["model"], run["pp"]):
            rate = "tokens_s_gpu" if other["nodes"] >= run["nodes"] else "tokens_s"
            if run[rate] < BROKEN * other[rate]:
                return True
    return False
