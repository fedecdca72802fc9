"""Exports for frameworks that train: Megatron-LM, DeepSpeed, torchtitan."""

from __future__ import annotations

import json

from agent.exports.export import ExportError, PlacedModules, export
from envs.pipeline.pipeline import GPIPE, INTERLEAVED, ONE_F_ONE_B, SEARCHED, ZERO_BUBBLE
from graphs.system.errors import shortened

TORCH_SCHEDULES = {
    GPIPE: "GPipe",
    ONE_F_ONE_B: "1F1B",
    INTERLEAVED: "Interleaved1F1B",
    ZERO_BUBBLE: "InterleavedZeroBubble",
    SEARCHED: "PipelineScheduleMulti",
}
"""Names of the schedules in `torch.distributed.pipelining.schedules.get_schedule_class`."""


@export("megatron", ending=".megatron.txt")
def megatron_layout(placed: PlacedModules) -> str:
    """Lays layers out for Megatron-LM: `E` embedding, `t` a layer, `L` loss, `|` between stages.

    With several stages on a device, all stages of the first round come first. Source: `parse_str_to_list` in
    megatron/core/transformer/pipeline_parallel_layer_layout.py.

    Raises:
        ExportError: several lists of layers.
    """
    placed.check_one_list("Megatron-LM")
    cells = [_repeated("t", count) for count in placed.counts]
    layout = "|".join(["E" + cells[0], *cells[1:]]) + "L"
    flags = f"--pipeline-model-parallel-size {len(dict.fromkeys(placed.part_devices))}"
    return f'{flags} --pipeline-model-parallel-layout "{layout}"\n'


def _repeated(letter: str, count: int) -> str:
    return f"{letter}*{count}" if count > 1 else letter * count


@export("deepspeed", ending=".deepspeed.py")
def deepspeed_parts(placed: PlacedModules) -> str:
    """Writes a subclass of DeepSpeed's `PipelineModule` whose stages begin at given layers.

    Its layers are the modules of the model in program order, which the comment lists. Source:
    `_partition_layers` in deepspeed/runtime/pipe/module.py.
    """
    placed.check_ranges("DeepSpeed")
    bounds = [0]
    for part in placed.parts:
        bounds.append(bounds[-1] + len(part))
    named = [unit.path for unit in placed.units]
    return f"""from deepspeed.pipe import PipelineModule

# layers: {", ".join(named)}


class PlacedPipeline(PipelineModule):
    def _partition_layers(self, method="uniform"):
        self.parts = {bounds}
        stage = self._topo.get_coord(self.global_rank).pipe
        self._set_bounds(start=self.parts[stage], stop=self.parts[stage + 1])
"""


@export("torchtitan", ending=".torchtitan.py")
def torchtitan_parts(placed: PlacedModules) -> str:
    """Names the modules of each stage for torchtitan: children of the model, and the layers of its lists.

    Source: `ParallelismConfig` and `_pipeline_module_split` of torchtitan 0.3.

    Raises:
        ExportError: a layer is deeper in the model than in a list of its own.
    """
    for unit in placed.units:
        if unit.path.count(".") > unit.is_layer:
            raise ExportError(
                f"torchtitan splits the children of a model and their lists, and '{shortened(unit.path)}' is "
                "deeper; place the module that has the layers in a list of its own"
            )
    names = json.dumps([[unit.path for unit in part] for part in placed.parts])
    degree = len(dict.fromkeys(placed.part_devices))
    settings = [f"pipeline_parallel_degree={degree}", f"module_fqns_per_model_part={names}"]
    if placed.pipeline is not None:
        settings.append(f'pipeline_parallel_schedule="{TORCH_SCHEDULES[placed.pipeline.name]}"')
        if placed.pipeline.name == SEARCHED:
            settings.append('pipeline_parallel_schedule_csv="schedule.csv"')
    lines = "".join(f"    {setting},\n" for setting in settings)
    return f"from torchtitan.config import ParallelismConfig\n\nparallelism = ParallelismConfig(\n{lines})\n"
