"""Draws `docs/walk.gif`: an episode of the environment, in which the shipped policy places a graph op by op.

Run `python docs/draw_walk.py` in the checkout.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.animation import PillowWriter
from matplotlib.collections import LineCollection

import envs
from agent.placers.base import PLACERS, Budget
from agent.policy.serialization import read_policy
from envs.figures import COPIES, PAPER, new_figure, style, timeline
from envs.graph_figure import heights_of, places_of
from envs.objective import Objective
from envs.placement.env import PlacementEnv
from envs.placements.placement import Placement
from envs.problem import Problem
from envs.simulator.simulate import simulate_problem
from graphs.dataset import load_family
from graphs.op_graph import OpGraph
from graphs.system.array_types import BoolArray, FloatArray

FILE = Path(__file__).with_name("walk.gif")
FRAMES, HELD, N_LAYERS = 56, 14, 44
"""Frames of the walk, and those that show its end; columns of the graph."""


def is_shown(graph: OpGraph) -> BoolArray:
    """Says which ops are drawn, (n_ops,): neither parameters and inputs nor updates."""
    shown: BoolArray = ~graph.is_source & (np.array(graph.phases) != "optimizer")
    return shown


def points_of(problem: Problem) -> FloatArray:
    """Finds where each op is drawn, (n_ops, 2)."""
    graph = problem.graph
    layers = np.rint((N_LAYERS - 1) * places_of(graph)).astype(np.int64)
    is_backward = (np.array(graph.phases) != "forward").astype(np.int64)
    shown = is_shown(graph)
    index = np.cumsum(shown) - 1
    edges = index[graph.edges[shown[graph.edges].all(axis=1)]]
    heights = np.zeros(graph.n_ops)
    heights[shown] = heights_of(layers[shown], is_backward[shown], edges)
    return np.stack([layers, heights], axis=1)


def main() -> None:
    """Repeats the policy's placement in the environment, and draws a frame every few decisions."""
    problem = Problem(load_family("inception")[8], envs.get_cluster("4xv100:3"))
    policy = PLACERS["policy"].with_policy(read_policy("pretrained").policy(), "topo")
    placed = policy.place(problem, Budget(evaluations=1), np.random.default_rng(0))
    devices, shown = placed.placement.device_of, np.flatnonzero(is_shown(problem.graph))
    points, until_ms = points_of(problem), 1020 * placed.step_time.total_s
    objective, names = Objective(problem), [device.name for device in problem.cluster.devices]
    single_ms = 1e3 * problem.scale_s
    edges = problem.graph.edges[np.isin(problem.graph.edges, shown).all(axis=1)]
    env = PlacementEnv([problem])
    obs, _ = env.reset(seed=0)
    walk, done = [env.device_of.copy()], False
    while not done:
        obs, _, done, _, _ = env.step(devices[int(obs["op"][0])])
        walk.append(env.device_of.copy())
    frames = np.linspace(0, len(walk) - 1, FRAMES).astype(int).tolist() + [len(walk) - 1] * HELD
    writer = PillowWriter(fps=8)
    with mpl.rc_context(style(PAPER)):
        figure = new_figure(4.6)
        upper, lower = figure.subplots(2, height_ratios=(3, 1.2))
        with writer.saving(figure, str(FILE), dpi=72):
            for at in frames:
                device_of = walk[at]
                for axes in (upper, lower):
                    axes.clear()
                colours = ["#d8d8d8" if device < 0 else PAPER.of(int(device)) for device in device_of[shown]]
                upper.add_collection(
                    LineCollection(points[edges].tolist(), colors=PAPER.grid, linewidths=0.7)
                )
                upper.scatter(*points[shown].T, 16, colours, zorder=2)
                upper.set_axis_off()
                n_placed = int((device_of[shown] >= 0).sum())
                step = simulate_problem(problem, device_of)
                title = f"{n_placed} of {len(shown)} ops placed, step {1e3 * step.total_s:.1f} ms"
                upper.set_title(f"{title}; one GPU takes {single_ms:.1f} ms", loc="left")
                for kind, bars in timeline(objective, Placement(device_of), step).items():
                    for device, start_s, end_s, _ in zip(*bars, strict=True):
                        y, height = (device + 0.26, 0.14) if kind == COPIES else (device - 0.4, 0.6)
                        colour = PAPER.muted if kind == COPIES else PAPER.of(int(device))
                        span = [(1e3 * start_s, 1e3 * (end_s - start_s))]
                        lower.broken_barh(
                            span, (y, height), facecolor=colour, edgecolor="white", linewidth=0.3
                        )
                lower.set(xlim=(0, until_ms), ylim=(len(names) - 0.4, -0.6), xlabel="time, ms")
                lower.set_yticks(range(len(names)), names)
                writer.grab_frame()


if __name__ == "__main__":
    main()
