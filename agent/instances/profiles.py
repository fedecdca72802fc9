"""Profiles of PipeDream and inputs of Piper."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from graphs.io.layer_profiles import read_pipedream_profile, read_piper_profile
from graphs.op_graph import OpGraph

DATA = Path(__file__).parent / "data"
"""Graphs, clusters and best known answers; `agent/instances/README.md` says whose they are."""
MILLISECONDS = ("piper_resnet",)
"""Inputs of Piper whose times are milliseconds."""
FAST, SLOW = "fast", "slow"


def profile_paths() -> dict[str, Path]:
    """Lists the profiles of msr-fiddle/pipedream and the inputs of msr-fiddle/piper by name."""
    return {path.name.partition(".")[0]: path for path in sorted(DATA.glob("pipe*.gz"))}


def profile_graph(path: Path) -> OpGraph:
    """Reads a profile, with the times of devices at half speed too.

    Layers that read nothing take no time, as in PipeDream's planner: they load data.
    """
    name = path.name.partition(".")[0]
    if name.startswith("pipedream"):
        graph = read_pipedream_profile(path, kind=FAST)
    else:
        graph = read_piper_profile(path, kind=FAST, unit_s=1e-3 if name in MILLISECONDS else 1.0)
    loads = np.array([not len(graph.predecessors.row(op)) for op in range(graph.n_ops)])
    seconds = np.where(loads, 0.0, graph.seconds[FAST])
    return replace(graph, name=name, seconds={FAST: seconds, SLOW: 2 * seconds})
