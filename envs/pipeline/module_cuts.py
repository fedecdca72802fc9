"""The stages nearest to those of a plan that begin with a module, as runtimes that split by module need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from envs.pipeline.pipeline import PipelineError
from envs.pipeline.simulate import PipelinedProblem, PipelineTime
from envs.pipeline.stages import Stages, phases_of
from graphs.op_graph import OpGraph
from graphs.system.array_types import IntArray
from graphs.system.errors import in_ms, shortened


@dataclass(frozen=True, eq=False)
class ModuleCuts:
    """A plan whose stages begin with modules.

    Attributes:
        modules: path of the module that each stage but the first begins with.
        stages: these stages.
        step_time: the pipelined step.
        n_moved: forward and backward ops that are in another stage than planned.
        planned_s: step time of the plan, seconds.
    """

    modules: tuple[str, ...]
    stages: Stages
    step_time: PipelineTime
    n_moved: int
    planned_s: float

    def __str__(self) -> str:
        moved = {0: "no op moves", 1: "1 op moves"}.get(self.n_moved, f"{self.n_moved:,} ops move")
        memory = "" if self.step_time.fits else ", out of memory"
        return (
            f"{moved} to begin stages with modules; a step takes {in_ms(self.step_time.total_s)} "
            f"(planned: {in_ms(self.planned_s)}){memory}"
        )


def cut_at_modules(
    pipelined: PipelinedProblem, stages: Stages, is_called: Callable[[str], bool]
) -> ModuleCuts:
    """Moves the cuts of a plan to beginnings of modules, over as few forward ops as possible.

    A stage can begin with a module that is called once, between pieces of the chain. Of nested modules that
    begin with the same op, the outermost is named.

    Args:
        is_called: says whether a module has a forward pass, which containers of modules have not.

    Raises:
        PipelineError: the graph has fewer such modules than the plan has cuts, or its stages are not parts of
            the forward pass in program order.
    """
    graph, chain = pipelined.problem.graph, pipelined.chain
    forward = np.flatnonzero(phases_of(graph) == 0)
    if (np.diff(stages.stage_of[forward]) < 0).any():
        raise PipelineError(
            "the stages of the plan take ops out of program order, in which modules are split; place with "
            "another placer, such as refine"
        )
    begins = _beginnings(graph, forward, is_called)
    piece = chain.piece_of[forward]
    allowed = [position for position in sorted(begins) if piece[position] != piece[position - 1]]
    n_stages = len(stages.devices)
    if len(allowed) < n_stages - 1:
        raise PipelineError(
            f"graph '{shortened(graph.name)}' has {len(allowed)} modules that a stage can begin with, and "
            f"the plan has {n_stages} stages; use fewer devices"
        )
    wanted = np.array([np.argmax(stages.stage_of[forward] == stage) for stage in range(1, n_stages)])
    chosen = _nearest(wanted, np.array(allowed, dtype=np.int64)) if n_stages > 1 else []
    first = np.array([0, *(piece[position] for position in chosen)])
    cut = chain.stages(first, stages.devices, stages.recomputed, stages.groups)
    return ModuleCuts(
        modules=tuple(begins[position] for position in chosen),
        stages=cut,
        step_time=pipelined.simulate(cut),
        n_moved=int((cut.stage_of != stages.stage_of).sum()),
        planned_s=pipelined.step_time_s(stages),
    )


def _beginnings(graph: OpGraph, forward: IntArray, is_called: Callable[[str], bool]) -> dict[int, str]:
    """Finds the modules that are called once, by the position of their first forward op; none at 0.

    The names of ops count the calls of the innermost module alone. One whose parts are all called again is
    taken to be called again itself.
    """
    runs: dict[str, list[int]] = {}  # first and last position, and number of ops
    again = set()
    for position, op in enumerate(forward.tolist()):
        parts = graph.modules[op].split(".")
        for count in range(len(parts) if graph.modules[op] else 0):
            run = runs.setdefault(".".join(parts[: count + 1]), [position, position, 0])
            run[1], run[2] = position, run[2] + 1
        called = graph.op_names[op].rpartition("/")[0]
        if called != graph.modules[op]:
            again.add(graph.modules[op])
    once = {
        part
        for path in {graph.modules[op] for op in forward.tolist()} - again
        for part in accumulate(path.split("."), "{}.{}".format)
    }
    modules: dict[int, str] = {}
    for path, (first, last, n_ops) in runs.items():  # outer modules before those in them
        if first and last - first + 1 == n_ops and path in once - again and is_called(path):
            modules.setdefault(first, path)
    return modules


def _nearest(wanted: IntArray, allowed: IntArray) -> list[int]:
    """Chooses an allowed position for each wanted one, ascending, with the least sum of distances."""
    cost = np.abs(allowed - wanted[0]).astype(np.float64)
    came_from = []
    for position in wanted[1:]:
        best = np.minimum.accumulate(cost)
        best_at = np.maximum.accumulate(np.where(cost == best, np.arange(len(cost)), 0))
        came_from.append(np.append(0, best_at[:-1]))
        cost = np.concatenate([[np.inf], best[:-1]]) + np.abs(allowed - position)
    chosen = [int(np.argmin(cost))]
    for before in reversed(came_from):
        chosen.append(int(before[chosen[-1]]))
    return [int(allowed[index]) for index in reversed(chosen)]
