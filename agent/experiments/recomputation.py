"""Compares what compiled steps save under a budget by our solver and by those of torch, also on a core."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch._inductor.lowering  # torch's table of decompositions reads it
from torch import Tensor, fx
from torch._functorch import config
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.aot_autograd import aot_module
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_utils import get_node_storage
from torch.distributed._tools.mem_tracker import MemTracker

from agent.experiments import pipeline_models
from agent.experiments.experiment import ExperimentError
from agent.experiments.launcher import followed
from agent.experiments.rows import grouped, markdown_table, mean_cell, read_rows
from agent.policy.threads import torch_threads
from envs.runtime.activation_budget import node_seconds, storage_bytes, use_activation_budget
from graphs.system.json_files import read_json, write_json_atomic

MODELS = ("gpt", "unet", "resnet")
OURS = "placewalk"
SOLVERS = (OURS, "dp", "greedy", "ilp")
"""Our solver, and torch's by their names there."""
SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05)
SHOWN = (0.05, 0.2, 0.5, 0.8)
"""Budgets whose measured steps are shown."""
BATCHES = 8
"""Copies of the inputs of `pipeline_models` in a batch, so that most of the memory is for activations."""


@dataclass(frozen=True)
class RecomputationRow:
    """The step of a model that one solver partitioned for one budget.

    Attributes:
        share: the budget, as a share of what torch saves by default.
        simulated_s: seconds of all ops of both passes, one after the other, as the solver estimates them.
        saved_bytes: what waits for the backward pass beyond inputs and parameters.
        simulated_peak_bytes: the most bytes alive at once, with each tensor freed after its last use.
        measured_peak_bytes: the most that torch's `MemTracker` counts.
        measured_s: median over the rounds of processor seconds, on one core.
    """

    model: str
    solver: str
    share: float
    simulated_s: float
    saved_bytes: int
    simulated_peak_bytes: int
    measured_peak_bytes: int
    measured_s: float


def budgeted(solver: str, share: float) -> AbstractContextManager[None]:
    """Limits what modules save that are compiled inside the `with`, by a solver of `SOLVERS`."""
    if solver == OURS:
        return use_activation_budget(share)
    patch: AbstractContextManager[None] = config.patch(
        activation_memory_budget=share, activation_memory_budget_solver=solver
    )
    return patch


class PartitionedStep:
    """Forward and backward pass of a module as torch's partitioner splits them, run op by op."""

    def __init__(self, module: torch.nn.Module, inputs: Sequence[Tensor], solver: str, share: float) -> None:
        self._module, self._inputs, self._graphs = module, inputs, list[fx.Graph]()
        self._compiled = aot_module(
            module,
            fw_compiler=self._keep,
            bw_compiler=self._keep,
            partition_fn=min_cut_rematerialization_partition,
            decompositions=select_decomp_table(),
        )
        with budgeted(solver, share):
            self.run()

    def _keep(self, module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        self._graphs.append(module.graph)
        boxed: Callable[..., Any] = make_boxed_func(module.forward)
        return boxed

    def run(self) -> float:
        """Runs one step. Returns its processor seconds."""
        self._module.zero_grad()
        begin_s = time.process_time()
        self._compiled(*self._inputs).backward()
        return time.process_time() - begin_s

    def measured_peak_bytes(self) -> int:
        """Returns the peak of one step that torch's `MemTracker` counts, parameters and inputs included."""
        self._module.zero_grad()
        tracker = MemTracker()
        tracker.track_external(self._module, *self._inputs)
        with tracker:
            self.run()
        return max(int(of_device["Total"]) for of_device in tracker.get_tracker_snapshot("peak").values())

    def simulated(self) -> tuple[float, int, int]:
        """Returns the seconds of the step, the bytes saved beyond its inputs, and the bytes of its peak."""
        forward, backward = self._graphs
        (kept,) = (node.args[0] for node in forward.nodes if node.op == "output")
        given = {get_node_storage(node) for node in forward.nodes if node.op == "placeholder"}
        n_saved = sum(node.op == "placeholder" for node in backward.nodes) - 1  # and the gradient of the loss
        saved = {get_node_storage(node): storage_bytes(node) for node in kept[-n_saved:]}
        seconds = sum(node_seconds(node) for graph in self._graphs for node in graph.nodes)
        saved_bytes = sum(size for storage, size in saved.items() if storage not in given)
        return seconds, saved_bytes, max(peak_bytes(forward), peak_bytes(backward))


def peak_bytes(graph: fx.Graph) -> int:
    """Returns the most bytes alive at once if the nodes run in order, one after the other.

    A storage is freed after its last use; the inputs of the graph stay alive, as does what it returns.
    """
    last, size, alive, most = {}, {}, 0, 0
    for at, node in enumerate(graph.nodes):
        for used in [node, *node.all_input_nodes]:
            last[get_node_storage(used) or used] = at
    for at, node in enumerate(graph.nodes):
        key = get_node_storage(node) or node
        if key not in size and isinstance(node.meta.get("val"), Tensor):
            size[key] = storage_bytes(node)
            alive += size[key]
            if node.op == "placeholder":
                last[key] = len(graph.nodes)
        most = max(most, alive)
        ended = {get_node_storage(used) or used for used in [node, *node.all_input_nodes]}
        alive -= sum(size.get(key, 0) for key in ended if last[key] == at)
    return most


def recomputation_rows(folder: Path, graphs: Sequence[str], rounds: int) -> Iterator[list[RecomputationRow]]:
    """Makes the rows of all models; a folder keeps those of a model that is done.

    Raises:
        ExperimentError: an unknown model, or no round.
    """
    if rounds < 1:
        raise ExperimentError(f"{rounds} rounds; give at least 1")
    if unknown := sorted({*graphs} - {*MODELS}):
        raise ExperimentError(f"unknown model '{unknown[0]}'; known are {', '.join(MODELS)}")
    found: list[RecomputationRow] = []
    for model in graphs or MODELS:
        path = folder / f"{model}-{rounds}.json"
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            write_json_atomic(path, [asdict(row) for row in rows_of(model, rounds)])
        kept: Any = read_json(path)
        found += [RecomputationRow(**row) for row in kept]
    yield found


def rows_of(model: str, rounds: int) -> Iterator[RecomputationRow]:
    """Makes the rows of one model: every round runs all steps once, in a random order."""
    module, one = getattr(pipeline_models, model)()
    inputs = [torch.cat([each] * BATCHES) for each in one]
    cases = [(solver, share) for share in SHARES for solver in SOLVERS]
    with torch_threads(1):
        steps = {case: PartitionedStep(module, inputs, *case) for case in followed(cases, f"compile {model}")}
        seconds: dict[tuple[str, float], list[float]] = {case: [] for case in cases}
        for at in followed(range(rounds), f"measure {model}"):
            for index in np.random.default_rng(at).permutation(len(cases)):
                seconds[cases[index]].append(steps[cases[index]].run())
        for case, step in steps.items():
            simulated_s, saved, peak = step.simulated()
            measured = step.measured_peak_bytes(), float(np.median(seconds[case]))
            yield RecomputationRow(model, *case, simulated_s, saved, peak, *measured)


def recomputation_tables(file: Path) -> Iterator[str]:
    """Yields what each solver makes of the budgets, and the measured steps at some of them."""
    rows = read_rows(file, RecomputationRow)
    ours = {(row.model, row.share): row for row in rows if row.solver == OURS}
    head = ["solver", "simulated step", "simulated peak", "measured step", "measured peak"]
    table = [[*head, "over the budget", "by at most", "slower with more budget"]]
    for solver, own in grouped(rows, lambda row: row.solver).items():
        below = [row for row in own if row.share < 1]
        means = (
            mean_cell(getattr(row, name) / getattr(ours[row.model, row.share], name) for row in below)
            for name in ("simulated_s", "simulated_peak_bytes", "measured_s", "measured_peak_bytes")
        )
        over = [row.saved_bytes / (row.share * ours[row.model, 1.0].saved_bytes) - 1 for row in below]
        exceeded = f"{sum(share > 0 for share in over)} of {len(over)}", f"{max(0.0, *over):.1%}"
        table.append([solver, *means, *exceeded, str(_slower_with_more(own))])
    yield markdown_table(table)
    table = [["model", "solver", *(f"{share:.0%}" for share in SHOWN)]]
    for (model, solver), own in grouped(rows, lambda row: (row.model, row.solver)).items():
        whole, found = ours[model, 1.0], {row.share: row for row in own}
        cells = (
            f"{found[share].measured_s / whole.measured_s:.3f} "
            f"({found[share].measured_peak_bytes / whole.measured_peak_bytes:.3f})"
            for share in SHOWN
        )
        table.append([model, solver, *cells])
    yield markdown_table(table)


def _slower_with_more(rows: Sequence[RecomputationRow]) -> int:
    """Counts the budgets whose simulated step is longer than that of the next smaller budget."""
    of_models = grouped(rows, lambda row: row.model).values()
    pairs = (pair for own in of_models for pair in pairwise(own))
    return sum(more.simulated_s > less.simulated_s * (1 + 1e-9) for more, less in pairs)
