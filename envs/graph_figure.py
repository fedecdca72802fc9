"""Figure of a placed graph: its ops, or its modules where there are too many, in layers."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from envs.figures import LABEL_CHARS, PAPER, new_figure, rows_of, style
from envs.problem import Problem
from graphs.granularity import module_paths
from graphs.levels import t_level
from graphs.op_graph import OpGraph
from graphs.system.array_types import FloatArray, IntArray
from graphs.system.errors import shortened

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_NODES, MOST_LAYERS, MOST_NAMES = 300, 60, 12
SWEEPS = 8
"""Times that the nodes of each layer are sorted by their neighbours."""
GAP = 1.5
"""Distance between the passes, in nodes."""
ROW_IN, LEAST_IN, MOST_IN = 0.22, 3.0, 9.0
PASSES = ("forward →", "← backward")


class Nodes(NamedTuple):
    """Nodes of a figure: ops, or all ops of a module and a pass on one device."""

    of_op: IntArray  # (n_ops,) node of each op, -1 = not drawn
    name: list[str]  # module, of several modules the beginning of their paths; an op without module
    is_backward: IntArray  # (n_nodes,) 0 or 1
    device: IntArray  # (n_nodes,)


def nodes_of(graph: OpGraph, device_of: IntArray) -> Nodes:
    """Lists the ops or, if they are more than `MOST_NODES`, the deepest modules that are not.

    A graph without modules is cut into as many equal spans of levels instead. Parameters, inputs and updates
    are not drawn.

    Args:
        device_of: device index of each op, int64 (n_ops,).
    """
    is_backward = np.array([phase == "backward" for phase in graph.phases], dtype=np.int64)
    drawn = np.flatnonzero(~graph.is_source & (np.array(graph.phases) != "optimizer")).tolist()
    paths = _paths(graph)
    depth = max(path.count(".") for path in paths) + 1
    keys: list[tuple[str, int, int]] = [(graph.op_names[op], 0, 0) for op in drawn]
    while len(set(keys)) > MOST_NODES and depth >= 0:
        parts = (".".join(paths[op].split(".")[:depth]) for op in drawn)
        keys = list(zip(parts, is_backward[drawn].tolist(), device_of[drawn].tolist(), strict=True))
        depth -= 1
    number = {key: index for index, key in enumerate(dict.fromkeys(keys))}
    first = [keys.index(key) for key in number]
    of_op = np.full(graph.n_ops, -1)
    of_op[drawn] = [number[key] for key in keys]
    ops = np.array(drawn, dtype=np.int64)[first]
    names = [key[0] if graph.modules[op] else graph.op_names[op] for op, key in zip(ops, number, strict=True)]
    return Nodes(of_op, names, is_backward[ops], device_of[ops])


def _levels(graph: OpGraph) -> IntArray:
    """Counts the ops on the longest path to each op, int (n_ops,)."""
    return t_level(graph, (~graph.is_source).astype(float), np.zeros(graph.n_tensors)).astype(np.int64)


def _paths(graph: OpGraph) -> list[str]:
    """Returns the module of each op; without modules the binary digits of its level."""
    if any(graph.modules):
        return module_paths(graph)
    level = _levels(graph).tolist()
    return [".".join(format(each, f"0{max(level).bit_length()}b")) for each in level]


def layers_of(graph: OpGraph, nodes: Nodes) -> IntArray:
    """Finds the layer of each node, int (n_nodes,): by level, of the backward pass from right to left.

    Backward ops of a module are where its forward ops are.
    """
    drawn, paths = np.flatnonzero(nodes.of_op >= 0), module_paths(graph)
    level, is_backward = _levels(graph)[drawn], nodes.is_backward[nodes.of_op[drawn]] > 0
    last = max(int(level[~is_backward].max(initial=0)), 1)
    most = max(int(level.max(initial=0)), last + 1)
    place = np.where(is_backward, (most - level) / (most - last), level / last)
    of_module = defaultdict[str, list[int]](list)
    for at, op in enumerate(drawn.tolist()):
        of_module[paths[op]].append(at)
    for path, members in of_module.items():
        ops = np.array(members)
        there, back = ops[~is_backward[ops]], ops[is_backward[ops]]
        if path and len(there) and len(back):
            ends = level[back].max(), max(int(np.ptp(level[back])), 1)
            place[back] = place[there].min() + np.ptp(place[there]) * (ends[0] - level[back]) / ends[1]
    means = np.bincount(nodes.of_op[drawn], place) / np.bincount(nodes.of_op[drawn])
    n_layers = min(MOST_LAYERS, last + 1)
    found: IntArray = np.rint(means.clip(0.0, 1.0) * (n_layers - 1)).astype(np.int64)
    return found


def heights_of(nodes: Nodes, layers: IntArray, edges: IntArray) -> FloatArray:
    """Finds the height of each node, (n_nodes,): nodes of a layer are sorted by the mean of their neighbours.

    Args:
        layers: layer of each node.
        edges: nodes, int (n_edges, 2).
    """
    height, top = np.zeros(len(layers)), 0.0
    for is_backward in (0, 1):
        own = nodes.is_backward == is_backward
        inside = edges[own[edges].all(axis=1)]
        ends = np.concatenate([inside, inside[:, ::-1]])
        degree = np.bincount(ends[:, 0], minlength=len(height))
        rows = [np.flatnonzero(own & (layers == layer)) for layer in np.unique(layers[own])]
        for _ in range(SWEEPS):
            mean = np.bincount(ends[:, 0], height[ends[:, 1]], len(height)) / np.maximum(degree, 1)
            wanted = np.where(degree, mean, height)
            for row in rows:
                ranked = row[np.argsort(wanted[row], kind="stable")]
                height[ranked] = (len(row) - 1) / 2 - np.arange(len(row))[::-1]
        largest = max(map(len, rows), default=0)
        height[own] += top - (largest - 1) / 2
        top -= largest + GAP
    return height


def graph_figure(problem: Problem, device_of: IntArray, title: str) -> Figure:
    """Draws a placed graph from left to right, and the backward pass from right to left below it.

    Nodes have the colour of their device, and are the larger the longer they compute.

    Args:
        device_of: device index of each op, int64 (n_ops,).
    """
    import matplotlib as mpl
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Outline

    graph, nodes = problem.graph, nodes_of(problem.graph, device_of)
    edges = nodes.of_op[graph.edges]
    edges = np.unique(edges[(edges >= 0).all(axis=1) & (edges[:, 0] != edges[:, 1])], axis=0)
    layers, drawn = layers_of(graph, nodes), nodes.of_op >= 0
    points = np.stack([layers, heights_of(nodes, layers, edges)], axis=1)
    seconds = problem.op_seconds[np.arange(graph.n_ops), device_of]
    node_s = np.bincount(nodes.of_op[drawn], seconds[drawn])
    sizes = 16 + 110 * node_s / max(node_s.max(initial=0.0), 1e-30)
    rows = rows_of(problem, device_of)
    with mpl.rc_context(style(PAPER)):
        height_in = np.clip(1.3 + ROW_IN * (np.ptp(points[:, 1]) if len(points) else 0), LEAST_IN, MOST_IN)
        figure = new_figure(float(height_in))
        axes = figure.add_subplot()
        crosses = nodes.device[edges[:, 0]] != nodes.device[edges[:, 1]]
        for chosen, colour, label in (
            (~crosses, PAPER.grid, "on one device"),
            (crosses, PAPER.muted, "copied"),
        ):
            begin, end = points[edges[chosen].T]
            middle = (begin + end) / 2
            passes = (np.abs(end - begin)[:, 0] > 1) & (begin[:, 1] == end[:, 1])
            middle[:, 1] += 0.9 * passes
            curves = np.stack([begin, middle, end], axis=1).reshape(-1, 2)
            outline = Outline(curves, [Outline.MOVETO, Outline.CURVE3, Outline.CURVE3] * len(begin))
            axes.add_patch(PathPatch(outline, facecolor="none", edgecolor=colour, linewidth=0.8))
            axes.plot([], [], color=colour, label=label)
        for device in np.argsort(rows)[np.isin(np.argsort(rows), nodes.device)].tolist():
            own, name = nodes.device == device, shortened(problem.cluster.devices[device].name, LABEL_CHARS)
            axes.scatter(points[own, 0], points[own, 1], sizes[own], PAPER.of(int(rows[device])), zorder=2)
            axes.scatter([], [], 40, PAPER.of(int(rows[device])), label=name)
        ticks = {
            int(layer): nodes.name[node]
            for node, layer in reversed([*enumerate(layers)])
            if not nodes.is_backward[node]
        }
        shown = sorted(ticks)[:: -(-len(ticks) // MOST_NAMES)]
        axes.set_xticks(
            shown, [shortened(ticks[each], LABEL_CHARS) for each in shown], rotation=20, ha="right", size=7
        )
        passes = {
            each: points[nodes.is_backward == each, 1] for each in np.unique(nodes.is_backward).tolist()
        }
        axes.set_yticks([each.mean() for each in passes.values()], [PASSES[each] for each in passes])
        axes.set_title(title, loc="left")
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure
