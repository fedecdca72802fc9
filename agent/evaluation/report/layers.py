"""The placed graph, drawn by layers: levels from left to right, the ops of a level from top to bottom."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch

from agent.evaluation.report.figures import Draw, Palette, rectangles, segments
from envs.problem import Problem
from graphs.levels import t_level
from graphs.op_graph import OpGraph
from graphs.system.array_types import FloatArray, IntArray

COLUMNS, ROWS = 90, 12
"""Cells that a large graph is aggregated to."""
MOST_EDGES = 400
WIDTH_IN, HEIGHT_IN = 6.6, 2.4


@dataclass(frozen=True, eq=False)
class Drawing:
    """A graph as cells and lines.

    Attributes:
        x, y: of each cell, (n_cells,).
        device: that most ops of each cell are on, (n_cells,).
        edges: pairs of cells, (n_edges, 2).
        ops_per_cell: greatest number of ops in a cell.
    """

    x: FloatArray
    y: FloatArray
    device: IntArray
    edges: IntArray
    ops_per_cell: int


def levels(graph: OpGraph) -> IntArray:
    """Number of ops on the longest path to each op, int (n_ops,)."""
    level: IntArray = t_level(graph, np.ones(graph.n_ops), np.zeros(graph.n_tensors)).astype(np.int64)
    return level


def positions(level: IntArray) -> IntArray:
    """Position of each op among those of its level, by index, int (n_ops,)."""
    order = np.argsort(level, kind="stable")
    starts = np.searchsorted(level[order], level[order], side="left")
    position = np.empty(len(level), dtype=np.int64)
    position[order] = np.arange(len(level)) - starts
    return position


def aggregated(graph: OpGraph, device_of: IntArray, n_devices: int) -> Drawing:
    """Lays a graph out; ops of a large graph share cells, and a cell is on the device of most of them."""
    level = levels(graph)
    position = positions(level)
    across = -(-(int(level.max()) + 1) // COLUMNS)
    down = -(-(int(position.max()) + 1) // ROWS)
    key = (level // across) * ROWS + position // down
    keys, cell_of = np.unique(key, return_inverse=True)
    counts = np.zeros((len(keys), n_devices), dtype=np.int64)
    np.add.at(counts, (cell_of, device_of), 1)
    edges = np.unique(cell_of[graph.edges], axis=0)
    edges = edges[edges[:, 0] != edges[:, 1]]
    return Drawing(
        x=(keys // ROWS * across).astype(np.float64),
        y=(keys % ROWS).astype(np.float64),
        device=counts.argmax(axis=1),
        edges=edges[:: -(-len(edges) // MOST_EDGES)] if len(edges) else edges,
        ops_per_cell=int(counts.sum(axis=1).max()),
    )


def layer_figure(problem: Problem, device_of: IntArray) -> Draw:
    """Draws a square per op, or per few ops of a large graph, in the colour of its device."""
    found = aggregated(problem.graph, device_of, problem.n_devices)
    step = (np.diff(np.unique(found.x)).min() if len(set(found.x)) > 1 else 1.0) * 0.38

    def draw(figure: Figure, palette: Palette) -> None:
        axes = figure.add_subplot()
        x, y = found.x, found.y
        if len(found.edges):
            one, other = found.edges.T
            lines = segments(np.column_stack([x[one], y[one], x[other], y[other]]))
            axes.add_patch(PathPatch(lines, facecolor="none", edgecolor=palette.grid, linewidth=0.5))
        for device in range(problem.n_devices):
            here = found.device == device
            if here.any():
                spans = np.column_stack([x - step, x + step, y - 0.38, y + 0.38])[here]
                name = problem.cluster.devices[device].name
                axes.add_patch(
                    PathPatch(rectangles(spans), facecolor=palette.of(device), edgecolor="none", label=name)
                )
        axes.set_xlim(x.min() - 1, x.max() + 1)
        axes.set_ylim(max(y.max(), 3.0) + 0.6, -0.6)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        shared = f"; a square is up to {found.ops_per_cell} ops" if found.ops_per_cell > 1 else ""
        axes.set_xlabel(f"level{shared}")
        figure.legend(loc="outside upper left", ncols=8, fontsize=8)

    return draw
