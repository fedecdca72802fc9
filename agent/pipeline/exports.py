"""A pipeline for exports: its stages as places, its schedule, and notes on its replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from agent.placing.exports.export import ExportError, PlacedModules
from envs.objective import Objective
from envs.pipeline.groups import shares_of
from envs.pipeline.module_cuts import cut_at_modules
from envs.pipeline.objective import PipelineObjective
from envs.pipeline.pipeline import GPIPE, INTERLEAVED, ONE_F_ONE_B, ZERO_BUBBLE, Pipeline
from envs.pipeline.schedules import schedule_csv
from envs.pipeline.stages import Stages
from envs.placements.placement import Placement
from graphs.system.array_types import IntArray
from graphs.system.errors import shortened

TORCH_SCHEDULES = {
    GPIPE: "GPipe",
    ONE_F_ONE_B: "1F1B",
    INTERLEAVED: "Interleaved1F1B",
    ZERO_BUBBLE: "InterleavedZeroBubble",
}
"""Names of the schedules in `torch.distributed.pipelining.schedules.get_schedule_class`."""


@dataclass(frozen=True, eq=False, kw_only=True)
class StagedModules(PlacedModules):
    """A pipeline for an export."""

    pipeline: Pipeline
    stages: Stages

    @classmethod
    def of(cls, objective: Objective, placement: Placement, layers: str) -> StagedModules:
        assert isinstance(objective, PipelineObjective), "the objective of a pipeline"
        stages, pipeline = objective.cut(placement), objective.pipeline
        return cls(objective.problem, placement, layers, pipeline=pipeline, stages=stages)

    @property
    def replicas(self) -> tuple[tuple[int, ...], ...]:
        return self.stages.replicas

    @property
    def is_sharded(self) -> bool:
        return self.pipeline.shard_optimizer

    @property
    def torch_schedule(self) -> str:
        return TORCH_SCHEDULES[self.pipeline.name]

    @property
    def place_of(self) -> IntArray:
        return self.stages.stage_of

    def _cut_at(self, begins: Callable[[str], bool]) -> tuple[StagedModules, tuple[str, ...]]:
        """Makes stages begin with the nearest of given modules; returns these too.

        Raises:
            PipelineError: there are too few.
        """
        pipelined = PipelineObjective(self.problem, self.pipeline).pipelined
        cuts = cut_at_modules(pipelined, self.stages, begins)
        notes = (str(cuts),) if cuts.n_moved else ()
        placement = Placement(cuts.stages.device_of)
        return replace(self, placement=placement, stages=cuts.stages, notes=notes), cuts.modules

    def whole(self, modules: Sequence[str]) -> StagedModules:
        ops = self.tree.ops(modules)
        if all(len(np.unique(self.place_of[of_module])) < 2 for of_module in ops.values()):
            return self
        return self._cut_at(ops.__contains__)[0]

    def split_points(self) -> Sequence[str]:
        return self._cut_at(self.tree.is_called)[1]

    def schedule_table(self) -> str:
        shares = shares_of(self.problem, self.replicas, self.pipeline.microbatches)
        one = replace(self.pipeline, microbatches=shares[0], replicas=1)
        return schedule_csv(one, len(self.stages.ranks))

    def in_order(self, places: list[int]) -> list[int]:
        return list(range(len(self.stages.devices)))

    def devices(self, places: Iterable[int]) -> list[int]:
        return [int(self.stages.devices[stage]) for stage in places]

    def place_name(self, place: int) -> str:
        return f"stage {place}"

    def batch_notes(self, target: str, microbatches: str, *, by_stage: bool = True) -> list[str]:
        if len(self.replicas) < 2:
            return []
        rows, devices = self.replicas, self.problem.cluster.devices
        order = [device for row in (zip(*rows, strict=True) if by_stage else rows) for device in row]
        names = ", ".join(shortened(self.device_names[device]) for device in order)
        count = self.pipeline.microbatches
        notes = [f"{len(rows)} replicas: start {len(order)} processes; their devices in order: {names}"]
        notes.append(microbatches.format(all=count, share=count // len(rows)))
        if len({tuple(devices[device].kind for device in row) for row in rows}) > 1:
            notes.append(
                f"{target} gives all replicas equally many microbatches, though their devices differ"
            )
        return notes

    def check_ranges(self, target: str) -> None:
        if self.pipeline.name == INTERLEAVED:
            raise ExportError(
                f"{target} gives each device one range of layers, and '{self.pipeline.schedule}' has "
                f"{self.pipeline.stages_per_device}; place with --pipeline 1f1b"
            )
