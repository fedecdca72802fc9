"""Tokens a second of language models split over unequal devices: by bytes, by speed, and by search."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, permutations
from pathlib import Path

import numpy as np

from agent.evaluation.inputs import prepared
from agent.experiments.inference_cases import HOST, MACHINES, MODELS, PROMPT, Made
from agent.experiments.launcher import followed
from agent.experiments.rows import axis, grouped, kept_rows, markdown_table, read_rows
from agent.placers.base import PLACERS, Budget
from agent.placers.units import unit_seconds
from envs.problem import Problem
from envs.simulator.simulate import simulate_problem
from graphs.capture.capture import capture
from graphs.capture.decoding import capture_decoding
from graphs.op_graph import OpGraph
from graphs.system.array_types import FloatArray, IntArray

GENERATED = 512
"""Tokens after the prompt; the step is that of the last one."""
ROOM = 0.9999
"""Share of a memory that layers may take; the rest is for activations."""
ONE, BYTES, SPEED, BEST = "one device", "by bytes", "by speed", "best by layer"
EXPERTS, SEARCH = "experts on host", "refine"


@dataclass(frozen=True)
class SplitRow:
    """A model on a machine.

    Attributes:
        token_s: seconds of the last token.
        prompt_s: seconds until the first token.
        seconds: processor seconds that the split took to find.
    """

    model: str
    precision: str
    machine: str
    split: str
    token_s: float
    prompt_s: float
    fits: bool
    seconds: float


def split_rows(folder: Path, graphs: Sequence[str], evaluations: int) -> Iterator[list[SplitRow]]:
    """Makes the rows of models on all machines.

    Args:
        folder: keeps the rows of each model.
        graphs: names of `MODELS`; none for all.
        evaluations: of `refine`.
    """
    found: list[SplitRow] = []
    for make in followed([each for each in MODELS if not graphs or each.__name__ in graphs], "models"):
        file = folder / f"{make.__name__}, {evaluations}.csv"
        found += kept_rows(file, SplitRow, partial(_rows, make, evaluations))
    yield found


def _rows(model_of: Callable[[], Made], evaluations: int) -> Iterator[SplitRow]:
    (model, inputs), model_name = model_of(), model_of.__name__
    token = capture_decoding(model, inputs, PROMPT + GENERATED, name=model_name).graph
    prompt = capture(model, inputs, training=False, name=model_name)
    for precision in ("bf16", "int4"):
        for name, make in MACHINES.items():
            first = Problem(prepared(prompt, precision, "op"), make())
            layered, modular = (
                Problem(prepared(token, precision, level), first.cluster) for level in ("layer", "module")
            )
            splits: dict[str, tuple[Problem, Callable[[Problem], IntArray]]] = {
                ONE: (layered, partial(placed_by, "single", evaluations)),
                BYTES: (layered, by_bytes),
                SPEED: (layered, by_speed),
                BEST: (layered, best_by_layer),
                SEARCH: (modular, partial(placed_by, "refine", evaluations)),
            }
            if HOST in first.cluster.devices and any(map(_layer_of_experts, token.modules)):
                splits[EXPERTS] = modular, experts_on_host
            for split, (problem, find) in splits.items():
                began = time.process_time()
                device_of = find(problem)
                took_s = time.process_time() - began
                step = simulate_problem(problem, device_of)
                prompt_s = simulate_problem(first, like(problem.graph, device_of, first.graph)).total_s
                case = token.name, precision, name, split
                yield SplitRow(*case, step.total_s, prompt_s, step.fits, took_s)


def placed_by(placer: str, evaluations: int, problem: Problem) -> IntArray:
    """Places by a placer; returns the device of each op, (n_ops,), as all splits do."""
    found = PLACERS[placer].place(problem, Budget(evaluations), np.random.default_rng(0))
    return found.placement.device_of


def by_bytes(problem: Problem) -> IntArray:
    """Splits layers in proportion to the memory of GPUs; a host gets those for which they have no room."""
    memory = [0.0 if device == HOST else device.memory_bytes for device in problem.cluster.devices]
    return in_proportion(problem, np.array(memory))


def by_speed(problem: Problem) -> IntArray:
    """Splits layers in proportion to the tokens a second of each device alone, as far as they fit."""
    return in_proportion(problem, 1 / problem.single_device_s)


def in_proportion(problem: Problem, weights: FloatArray) -> IntArray:
    """Gives each device layers in proportion to weights, (n_devices,), in the order of the cluster.

    While a device overflows, a layer of it goes to the device with the most free memory.

    Source: `llama_model::load_tensors` of llama.cpp, which has no such correction.
    """
    n_layers, devices = len(problem.graph.units), np.arange(len(weights))
    ends = (np.cumsum(weights) / weights.sum()).round(9)
    of_layer = np.searchsorted(ends, np.arange(n_layers) / n_layers, side="right")
    for _ in range(2 * n_layers):
        step = simulate_problem(problem, of_layer[problem.graph.unit_of])
        if step.fits:
            break
        free = problem.cluster.memory_bytes - step.peak_bytes
        counts = np.bincount(of_layer, minlength=len(devices))
        counts[[free.argmin(), free.argmax()]] += [-1, 1]
        of_layer = np.repeat(devices, counts)
    return of_layer[problem.graph.unit_of]


def best_by_layer(problem: Problem) -> IntArray:
    """Finds the fastest split with one range of layers, or none, on each device, in any order of devices."""
    kinds = [(device.kind, device.memory_bytes) for device in problem.cluster.devices]
    orders = {tuple(kinds[at] for at in order): order for order in permutations(range(len(kinds)))}
    return _best(problem, [_ranges(problem, order)[problem.graph.unit_of] for order in orders.values()])


def _ranges(problem: Problem, order: tuple[int, ...]) -> IntArray:
    """Finds the best ranges for an order of devices by dynamic programming; all links must be equal.

    Returns:
        Device of each layer, (n_layers,); the last one for all layers if nothing fits.
    """
    graph, cluster, n_layers = problem.graph, problem.cluster, len(problem.graph.units)
    seconds = np.vstack([np.zeros(problem.n_devices), unit_seconds(problem).cumsum(axis=0)])
    held = np.concatenate([[0.0], problem.footprint_bytes.cumsum()])
    sent = graph.tensor_bytes[graph.outputs.row(graph.units.row(0)[-1])].sum()  # what layer 1 reads
    cut_s = (sent + cluster.n_half_matrix[0, 1]) / cluster.bytes_per_s[0, 1] + cluster.latency_s[0, 1]
    best: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    best += [(np.inf, order[-1:] * n_layers)] * n_layers
    for device in order:
        room, spent, before = ROOM * cluster.memory_bytes[device], seconds[:, device], list(best)
        for begin, end in combinations(range(n_layers + 1), 2):
            if held[end] - held[begin] <= room:
                total_s = before[begin][0] + cut_s * (begin > 0) + spent[end] - spent[begin]
                best[end] = min(best[end], (total_s, before[begin][1] + (device,) * (end - begin)))
    return np.array(best[-1][1])


def experts_on_host(problem: Problem) -> IntArray:
    """Keeps the experts of the first layers on the host, of as few as fit, and all else on the one GPU.

    Source: `--n-cpu-moe` of llama.cpp.
    """
    layer_of = [_layer_of_experts(path) for path in problem.graph.modules]
    rank = {layer: at for at, layer in enumerate(axis(layer for layer in layer_of if layer))}
    of_op = np.array([rank.get(layer, len(rank)) for layer in layer_of])
    return _best(problem, [(of_op >= count).astype(np.int64) for count in range(len(rank) + 1)])


def _layer_of_experts(path: str) -> str:
    """Returns the part of a module path before that of a mixture's experts; empty if there are none."""
    before, experts, _ = path.partition(".experts")
    return before if experts else ""


def _best(problem: Problem, devices_of: Sequence[IntArray]) -> IntArray:
    """Returns the fastest placement among those that fit, if any does."""
    steps = [simulate_problem(problem, device_of) for device_of in devices_of]
    order = [(not step.fits, step.total_s) for step in steps]
    return devices_of[order.index(min(order))]


def like(graph: OpGraph, device_of: IntArray, other: OpGraph) -> IntArray:
    """Places another graph of the same model by module; what is in none follows the op before it."""
    device_in = dict(zip(reversed(graph.modules), reversed(device_of.tolist()), strict=True))
    found, last = [], int(device_of[0])
    for module in other.modules:
        last = device_in.get(module, last) if module else last
        found.append(last)
    return np.array(found)


Case = Mapping[str, SplitRow]
"""Rows of the splits that fit."""


def split_tables(file: Path) -> Iterator[str]:
    """Yields the tokens a second of each split, and what the splits lose by machine."""
    rows = grouped(read_rows(file, SplitRow), lambda row: (f"{row.model}, {row.precision}", row.machine))
    cases = {case: {row.split: row for row in own if row.fits} for case, own in rows.items()}
    lines = [
        [model, *(_rates(cases[model, at]) for at in MACHINES)] for model in axis(name for name, _ in cases)
    ]
    yield markdown_table([["", *MACHINES], *lines])
    groups = {name: [own for (_, at), own in cases.items() if at == name] for name in MACHINES}
    groups["mixtures with host"] = [own for own in cases.values() if EXPERTS in own]
    groups["all"] = list(cases.values())
    losses = ((ONE, BEST), (BYTES, BEST), (SPEED, BEST), (BEST, SEARCH), (EXPERTS, SEARCH))
    head = ["cases", "fit", *(f"{split} loses to {than}" for split, than in losses), "first token, s"]
    lines = [["", *head]]
    for name, own in groups.items():
        first_s = [case[BEST].prompt_s for case in own if BEST in case]
        lost = [_lost(own, *pair) for pair in losses]
        lines.append([name, str(len(own)), str(len(first_s)), *lost, _range(first_s)])
    yield markdown_table(lines)


def _rates(case: Case) -> str:
    """Formats the tokens a second of four splits; a split that does not fit is a dash."""
    shown = (BYTES, SPEED, BEST, SEARCH)
    rates = [f"{1 / case[split].token_s:.3g}" if split in case else "-" for split in shown]
    return " / ".join(rates) if case else "none fits"


def _lost(cases: Sequence[Case], split: str, than: str) -> str:
    """Formats the percentage of tokens a second that a split loses, where both fit."""
    both = [(case[split], case[than]) for case in cases if {split, than} <= case.keys()]
    return _range([100 * (1 - better.token_s / row.token_s) for row, better in both])


def _range(values: Sequence[float]) -> str:
    """Formats the median and the range of numbers."""
    return f"{np.median(values):.1f} ({min(values):.1f} to {max(values):.1f})" if values else ""
