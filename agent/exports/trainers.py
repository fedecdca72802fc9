"""Exports for frameworks that train: Megatron-LM, DeepSpeed, torchtitan."""

from __future__ import annotations

import json
from itertools import accumulate

from agent.exports.export import ExportError, PlacedModules, comments, export
from agent.exports.module_tree import MTP
from envs.pipeline.pipeline import GPIPE, INTERLEAVED, ONE_F_ONE_B, SEARCHED, ZERO_BUBBLE
from graphs.graph_columns import LIST

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
    """Lays layers out for Megatron-LM: `E` embedding, `t` a layer, `m` a layer for multi-token prediction, `L`
    loss, `|` between stages.

    With several stages on a device, all stages of the first round come first. All `m` are in one stage of the
    last round, after the last `t`, and one `L` at the end stands for all losses. Source: `parse_str_to_list`
    and `validate_layer_layout` in megatron/core/transformer/pipeline_parallel_layer_layout.py.
    """
    placed, ranks = placed.ranks("Megatron-LM")
    n_devices = len(set(placed.devices(ranks.places)))
    cells = [_repeated("t", count) for count in ranks.counts]
    notes = [note for note in ranks.notes if MTP not in note.lower()]
    if predicted := placed.tree.predicted():
        ops = [op for own in placed.tree.ops(predicted).values() for op in own]
        used = {ranks.places.index(place) for place in placed.place_of[ops].tolist() if place in ranks.places}
        last = max(at for at, count in enumerate(ranks.counts) if count)
        at = max([last, len(cells) - n_devices, *used])
        cells[at] += _repeated("m", len(predicted))
        if used - {at}:
            notes.append(f"Megatron-LM runs all of '{predicted[0]}' and the like in stage {at}")
    layout = "|".join(["E" + cells[0], *cells[1:]]) + "L"
    flags = f"--pipeline-model-parallel-size {n_devices}"
    return f'{comments(notes)}{flags} --pipeline-model-parallel-layout "{layout}"\n'


def _repeated(letter: str, count: int) -> str:
    return f"{letter}*{count}" if count > 1 else letter * count


@export("deepspeed", ending=".deepspeed.py")
def deepspeed_parts(placed: PlacedModules) -> str:
    """Writes a subclass of DeepSpeed's `PipelineModule` whose stages begin at given layers.

    Its layers are the modules of the model in program order, which the comment lists. Source:
    `_partition_layers` in deepspeed/runtime/pipe/module.py.
    """
    placed.check_ranges("DeepSpeed")
    tree = placed.tree
    placed, parts = placed.parts(tree.modules(lambda path: path not in tree.layers and tree.opens(path)))
    bounds = list(accumulate((len(run) for _, run in parts), initial=0))
    named = [path for _, run in parts for path in run]
    return f"""from deepspeed.pipe import PipelineModule

{comments([placed.note])}# layers: {", ".join(named)}


class PlacedPipeline(PipelineModule):
    def _partition_layers(self, method="uniform"):
        self.parts = {bounds}
        stage = self._topo.get_coord(self.global_rank).pipe
        self._set_bounds(start=self.parts[stage], stop=self.parts[stage + 1])
"""


@export("torchtitan", ending=".torchtitan.py")
def torchtitan_parts(placed: PlacedModules) -> str:
    """Names the modules of each stage for torchtitan: children of the model, and the members of its lists.

    Source: `ParallelismConfig` and `pipeline_module_split` of torchtitan 0.3, which keeps a `Sequential` whole.

    Raises:
        ExportError: a child of the model is on several devices.
    """
    tree = placed.tree
    try:
        placed, parts = placed.parts(tree.modules(lambda path: "." not in path and tree.kind[path] == LIST))
    except ExportError as error:
        raise ExportError(
            f"torchtitan splits the children of a model and its ModuleLists and ModuleDicts alone: {error}, "
            "or place the module that has the layers in a list of its own"
        ) from None
    names = json.dumps([run for _, run in parts])
    degree = len(set(placed.devices([place for place, _ in parts])))
    settings = [f"pipeline_parallel_degree={degree}", f"module_fqns_per_model_part={names}"]
    if placed.pipeline is not None:
        settings.append(f'pipeline_parallel_schedule="{TORCH_SCHEDULES[placed.pipeline.name]}"')
        if placed.pipeline.name == SEARCHED:
            settings.append('pipeline_parallel_schedule_csv="schedule.csv"')
    lines = "".join(f"    {setting},\n" for setting in settings)
    head = f"from torchtitan.config import ParallelismConfig\n\n{comments([placed.note])}"
    return f"{head}parallelism = ParallelismConfig(\n{lines})\n"
