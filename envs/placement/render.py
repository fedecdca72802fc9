"""Drawings of a partial placement: what each device runs and when, with the op at hand marked."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from envs.placement.episodes import EpisodeBatch
from envs.simulator.simulate import StepTime, simulate_problem
from graphs.system.array_types import IntArray

if TYPE_CHECKING:
    from envs.problem import Problem

ANSI, RGB_ARRAY = RENDER_MODES = ("ansi", "rgb_array")
Picture = NDArray[np.uint8]
COLUMNS, PIXELS, ROW, GAP = 72, 640, 20, 4
"""Width of a text in characters and of an image in pixels; heights of a row and of a gap."""
IDLE, MARK = (225, 225, 225), (214, 39, 40)
COLOURS = ((31, 119, 180), (255, 127, 14), (44, 160, 44), (148, 103, 189), (140, 86, 75), (23, 190, 207))
"""Colours of types of ops."""


def draw(batch: EpisodeBatch, episode: int, mode: str) -> str | Picture:
    """Draws the simulated step of what an episode has placed so far.

    The op at hand is marked where it runs (`improve`), or at the finish of its placed inputs (`construct`).

    Returns:
        A text with a line for each device, or an image, uint8 (height, width, 3).
    """
    problem, device_of = batch.problem_of(episode), batch.device_of(episode)
    op = -1 if batch.done[episode] else int(batch.observation.op[episode, 0])
    step = simulate_problem(problem, device_of)
    inputs = problem.graph.predecessors.row(op) if op >= 0 else np.zeros(0, dtype=np.int64)
    inputs = inputs[device_of[inputs] >= 0]
    ready_s = float(step.finish_s[inputs].max(initial=0.0))
    runs = np.flatnonzero((device_of >= 0) & (step.finish_s > step.start_s))
    if mode == RGB_ARRAY:
        image = timeline(problem, device_of, step)
        if op >= 0 > device_of[op]:
            image[:, _column(step.total_s, ready_s, PIXELS)] = MARK
        elif op in runs:
            image[_pixels(device_of[op]), _span(step, step.total_s, op, PIXELS)] = MARK
        return image
    cells = np.full((problem.n_devices, COLUMNS), ".")
    for drawn in sorted(runs.tolist(), key=lambda drawn: drawn == op):
        cells[device_of[drawn], _span(step, step.total_s, drawn, COLUMNS)] = "@" if drawn == op else "#"
    names = [device.name for device in problem.cluster.devices]
    width = max(map(len, names))
    lines = [f"{name:>{width}} {''.join(row)}" for name, row in zip(names, cells, strict=True)]
    placed = f"{int((device_of >= 0).sum())} of {problem.graph.n_ops} ops, {1000 * step.total_s:.4g} ms"
    if op < 0:
        return "\n".join([placed, *lines])
    if device_of[op] < 0:
        lines.append(" " * (width + 1 + _column(step.total_s, ready_s, COLUMNS)) + "^")
    return "\n".join([f"{placed}; at hand: '{problem.graph.op_names[op]}'", *lines])


def timeline(problem: Problem, device_of: IntArray, step: StepTime, width_s: float = 0.0) -> Picture:
    """Draws a row for each device, uint8 (height, width, 3): its ops when they run, coloured by type.

    Args:
        device_of: device index of each op, int (n_ops,); -1 = not placed.
        width_s: least seconds that the width stands for.
    """
    types = [zlib.crc32(name.encode()) % len(COLOURS) for name in problem.graph.op_types]
    image = np.full((problem.n_devices * (ROW + GAP) + GAP, PIXELS, 3), 255, dtype=np.uint8)
    for device in range(problem.n_devices):
        image[_pixels(device)] = IDLE
    for op in np.flatnonzero((device_of >= 0) & (step.finish_s > step.start_s)).tolist():
        span = _span(step, max(step.total_s, width_s), op, PIXELS)
        image[_pixels(device_of[op]), span] = COLOURS[types[op]]
    return image


def _pixels(device: int) -> slice:
    return slice(GAP + device * (ROW + GAP), (device + 1) * (ROW + GAP))


def _column(width_s: float, at_s: float, width: int) -> int:
    return min(int(at_s / max(width_s, 1e-12) * width), width - 1)


def _span(step: StepTime, width_s: float, op: int, width: int) -> slice:
    first = _column(width_s, step.start_s[op], width)
    return slice(first, max(round(step.finish_s[op] / width_s * width), first + 1))
