"""Views of a placement and its simulated step: its text, table, trace and files; of a step or a pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from agent.placing.handover.explain import Explanation, advice_line, explain, host_lines
from agent.placing.handover.files import explanation_lines, op_rows, write_handover
from agent.placing.handover.trace import step_trace
from envs.objective import PIPELINE, STEP, Objective
from envs.placements.placement import Placement
from envs.simulator.data_parallel import DataParallelStep
from envs.simulator.simulate import SimulatedStep
from graphs.system.numbers import in_ms


@dataclass(frozen=True, eq=False)
class View:
    """The view of a placement and its simulated step of one batch; that of a pipeline is a subclass.

    Attributes:
        objective: the `Objective` that the placement makes short.
        step: the simulated step, as the objective makes it.
        best_steps, tried: as of `Plan`.
    """

    objective: Any
    placement: Placement
    step: Any
    best_steps: Mapping[int | str, SimulatedStep] = field(default_factory=dict)
    tried: Sequence[str] = ()

    @cached_property
    def explanation(self) -> Explanation:
        """The bounds of the step of the graph, and the time that removing each would save, in numbers."""
        return explain(self.objective.problem, self.placement.device_of, self.step)

    @property
    def data_parallel(self) -> DataParallelStep:
        """Data parallelism on the same devices."""
        return self.explanation.data_parallel

    def summary(self, where: str, bound: str, ops: str) -> list[str]:
        """Says in lines what the placement is worth, and what to use.

        Args:
            where: names of the graph, the cluster and the placer.
            bound: words on the lower bound.
            ops: line on the ops of each device, and on the search.
        """
        explanation, (single_s, single_fits) = self.explanation, self.objective.single_step
        ratio, memory = self.step.total_s / single_s, "" if single_fits else ", had it the memory"
        worth = f"{ratio:.3f} of the fastest single device's{memory}" if self.step.fits else "out of memory"
        return [
            *host_lines(explanation.host),
            f"{where}: a step takes {in_ms(self.step.total_s)} (simulated)",
            f"{worth}; {bound}",
            ops,
            f"data parallel: {explanation.data_parallel}",
            advice_line(explanation),
        ]

    def explain(self) -> list[str]:
        """Says in lines what to use, and what bounds the step."""
        return explanation_lines(self.objective.problem, self.placement.device_of, self.step)

    def table(self) -> list[Any]:
        """Lists the rows of ops, in program order, or of stages."""
        problem = self.objective.problem
        return list(op_rows(problem.graph, problem.cluster, self.placement.device_of))

    def trace(self) -> dict[str, Any]:
        """Makes the trace of the step."""
        return step_trace(self.objective.problem, self.placement.device_of, self.step)

    def hand_over(self, folder: Path, name: str) -> list[str]:
        """Writes the files that begin with a name; returns lines on what bounds the step."""
        return write_handover(folder, name, self.objective.problem, self.placement.device_of, self.step)

    def check_compiles(self) -> None:
        """Checks that `Plan.compile` can run the step."""


VIEWS = {STEP: "agent.placing.views:View", PIPELINE: "agent.pipeline.view:PipelineView"}
"""Class of the views of each kind of objective, which is loaded when one is made."""


def view_of(objective: Objective, placement: Placement, step: SimulatedStep, *others: Any) -> View:
    """Makes the view of a placement and its simulated step; `others` are the other fields of `View`."""
    made: View = resolve_name(VIEWS[objective.kind])(objective, placement, step, *others)
    return made
