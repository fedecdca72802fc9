"""Figure of a placed graph: its ops, or its modules where there are too many, in layers."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from envs.figures import LABEL_CHARS, PAPER, draw_legend, new_figure, rows_of, style
from envs.problem import Problem
from graphs.granularity import module_paths
from graphs.levels import t_level
from graphs.op_graph import OpGraph
from graphs.system.array_types import FloatArray, IntArray
from graphs.system.errors import shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_NODES, MOST_LAYERS, MOST_NAMES = 300, 60, 12
WHOLE = 32
"""Digits of a level that are left out where a node spans all levels."""
SWEEPS, GAP = 8, 1.5
"""Times that the nodes of each layer are sorted by their neighbours; distance of the passes, in nodes."""
PASSES = ("forward →", "← backward")


def nodes_of(graph: OpGraph, device_of: IntArray) -> list[list[int]]:
    """Lists the ops of each node: one, or if that makes more than `MOST_NODES` those of a pass on a device
    that have modules in common, as deep as fits, and levels in common, as few as fit.

    Parameters, inputs and updates are not drawn.

    Args:
        device_of: device index of each op, int64 (n_ops,).
    """
    drawn = np.flatnonzero(~graph.is_source & (np.array(graph.phases) != "optimizer")).tolist()
    paths, levels = [path.split(".") for path in module_paths(graph)], _levels(graph).tolist()

    def grouped(depth: int, digits: int) -> list[list[int]]:
        groups = defaultdict[Any, list[int]](list)
        for op in drawn:
            common = *paths[op][:depth], levels[op] >> digits
            groups[(common, graph.phases[op], device_of[op])].append(op)
        return list(groups.values())

    if len(drawn) <= MOST_NODES:
        return [[op] for op in drawn]
    depths = range(max(map(len, paths)), 0, -1)
    depth = next((depth for depth in depths if len(grouped(depth, WHOLE)) <= MOST_NODES), 0)
    finest = (nodes for digits in range(WHOLE) if len(nodes := grouped(depth, digits)) <= MOST_NODES)
    return next(finest, grouped(0, WHOLE))


def _levels(graph: OpGraph) -> IntArray:
    """Counts the ops on the longest path to each op, int (n_ops,)."""
    return t_level(graph, (~graph.is_source).astype(float), np.zeros(graph.n_tensors)).astype(np.int64)


def places_of(graph: OpGraph) -> FloatArray:
    """Finds the place of each op from left to right, 0 to 1, (n_ops,): by level, backward reversed.

    Backward ops of a module are where its forward ops are.
    """
    level, phases = _levels(graph), np.array(graph.phases)
    is_forward, is_backward = (phases == "forward") & ~graph.is_source, phases == "backward"
    last = max(int(level[is_forward].max(initial=0)), 1)
    most = max(int(level.max(initial=0)), last + 1)
    place: FloatArray = np.where(is_backward, (most - level) / (most - last), level / last).clip(0.0, 1.0)
    of_module = defaultdict[str, list[int]](list)
    for op, path in enumerate(module_paths(graph)):
        of_module[path].append(op)
    for path, members in of_module.items():
        ops = np.array(members)
        there, back = ops[is_forward[ops]], ops[is_backward[ops]]
        if path and len(there) and len(back):
            share = (level[back].max() - level[back]) / max(int(np.ptp(level[back])), 1)
            place[back] = place[there].min() + share * np.ptp(place[there])
    return place


def heights_of(layers: IntArray, is_backward: IntArray, edges: IntArray) -> FloatArray:
    """Finds the height of each node, (n_nodes,): nodes of a layer are sorted by the mean of their neighbours.

    Args:
        layers, is_backward: layer and pass of each node, int (n_nodes,).
        edges: nodes, int (n_edges, 2).
    """
    n_nodes, n_layers = len(layers), int(layers.max(initial=0)) + 1
    column, height = layers + n_layers * is_backward, np.zeros(n_nodes)
    size = np.bincount(column, minlength=2 * n_layers)
    middle = np.cumsum(size) - (size + 1) / 2
    near = np.concatenate([edges, edges[:, ::-1]])
    near = near[is_backward[near[:, 0]] == is_backward[near[:, 1]]]
    degree = np.bincount(near[:, 0], minlength=n_nodes)
    for _ in range(SWEEPS):
        mean = np.bincount(near[:, 0], height[near[:, 1]], n_nodes) / np.maximum(degree, 1)
        order = np.lexsort((np.where(degree, mean, height), column))
        height[order] = np.arange(n_nodes) - middle[column[order]]
    height -= is_backward * ((size[:n_layers].max() + size[n_layers:].max()) / 2 + GAP)
    return height


def graph_figure(problem: Problem, device_of: IntArray, title: str) -> Figure:
    """Draws a placed graph from left to right, and the backward pass from right to left below it.

    Nodes have the colour of their device, and are the larger the longer they compute.

    Args:
        device_of: device index of each op, int64 (n_ops,).
    """
    import matplotlib as mpl

    graph, nodes = problem.graph, nodes_of(problem.graph, device_of)
    node_of, first = np.full(graph.n_ops, -1), np.array([ops[0] for ops in nodes], dtype=np.int64)
    for node, ops in enumerate(nodes):
        node_of[ops] = node
    edges = node_of[graph.edges]
    edges = np.unique(edges[(edges >= 0).all(axis=1) & (edges[:, 0] != edges[:, 1])], axis=0)
    device, is_backward = device_of[first], np.array(graph.phases)[first] == "backward"
    place, seconds = places_of(graph), problem.op_seconds[np.arange(graph.n_ops), device_of]
    n_layers = min(MOST_LAYERS, 1 + int(_levels(graph)[first[~is_backward]].max(initial=0)))
    layers = np.rint([(n_layers - 1) * place[ops].mean() for ops in nodes]).astype(np.int64)
    points = np.stack([layers, heights_of(layers, is_backward.astype(np.int64), edges)], axis=1)
    node_s = np.array([seconds[ops].sum() for ops in nodes])
    sizes, rows = 16 + 110 * node_s / max(node_s.max(initial=0.0), 1e-30), rows_of(problem, device_of)
    with mpl.rc_context(style(PAPER)):
        rows_in = 0.22 * (points[:, 1].max(initial=0) - points[:, 1].min(initial=0))
        figure = new_figure(float(np.clip(1.3 + rows_in, 3.0, 9.0)))
        axes = figure.add_subplot()
        copied = device[edges[:, 0]] != device[edges[:, 1]]
        _draw_edges(axes, points[edges[~copied]], PAPER.grid, "on one device")
        _draw_edges(axes, points[edges[copied]], PAPER.muted, "copied")
        for used in sorted(set(device.tolist()), key=rows.__getitem__):
            x, y = points[device == used].T
            name, colour = problem.cluster.devices[used].name, PAPER.of(int(rows[used]))
            axes.scatter(x, y, sizes[device == used], colour, zorder=2)
            axes.scatter([], [], 40, colour, label=shortened(name, LABEL_CHARS))
        named = np.flatnonzero(~is_backward)
        named = named[np.unique(layers[named] * MOST_NAMES // n_layers, return_index=True)[1]]
        names = [graph.modules[op] or graph.op_names[op] for op in first[named].tolist()]
        short = [shortened(name, LABEL_CHARS) for name in names]
        axes.set_xticks(layers[named], short, rotation=20, ha="right", size=7)
        middle = {
            PASSES[backward]: points[is_backward == backward, 1].mean()
            for backward in set(is_backward.tolist())
        }
        axes.set_yticks([*middle.values()], [*middle])
        axes.set_title(title, loc="left")
        draw_legend(axes)
    return figure


def _draw_edges(axes: Axes, ends: FloatArray, colour: str, label: str) -> None:
    """Draws lines from point to point, (n, 2, 2); those that would pass through nodes are bowed."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Outline

    begin, end, middle = ends[:, 0], ends[:, 1], ends.mean(axis=1)
    middle[:, 1] += 0.9 * ((np.abs(end - begin)[:, 0] > 1) & (begin[:, 1] == end[:, 1]))
    curves = np.stack([begin, middle, end], axis=1).reshape(-1, 2)
    outline = Outline(curves, [Outline.MOVETO, Outline.CURVE3, Outline.CURVE3] * len(begin))
    axes.add_patch(PathPatch(outline, facecolor="none", edgecolor=colour, linewidth=0.8))
    axes.plot([], [], color=colour, label=label)
