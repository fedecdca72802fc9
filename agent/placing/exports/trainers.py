"""Exports for frameworks that train: PyTorch, accelerate, Megatron-LM, DeepSpeed, torchtitan."""

from __future__ import annotations

import json
import sys
from itertools import accumulate

import numpy as np

from agent.placing.exports.export import ExportError, PlacedModules, comments, export
from agent.placing.exports.module_tree import ModuleTree, above
from agent.placing.handover.device_map import project
from graphs.system.errors import InputError, shortened


@export("split-spec", ending=".split_spec.json")
def torch_split_spec(placed: PlacedModules) -> str:
    """Names the modules that stages but the first begin with, as JSON.

    `torch.distributed.pipelining.pipeline` takes them as
    `split_spec={path: SplitPoint.BEGINNING for path in names}`. The cuts of a pipeline move to the nearest
    beginnings of modules, as those of `plan.pipeline_stages`.

    Raises:
        ExportError: a device has modules apart, or a module to split at is called several times.
    """
    return json.dumps(placed.split_points()) + "\n"


@export("schedule-csv", ending=".schedule.csv")
def torch_schedule(placed: PlacedModules) -> str:
    """Writes the actions of each rank in a row, as torch and torchtitan load a schedule.

    Raises:
        ExportError: no pipeline was placed.
    """
    return placed.schedule_table()


@export("accelerate", ending=".accelerate.json")
def accelerate_map(placed: PlacedModules) -> str:
    """Makes the nearest device map that `accelerate.dispatch_model` can run, as JSON.

    If one device is faster than the map, a line on stderr says so, with the map of that device.
    """
    device_map = project(placed.problem, placed.placement.device_of)
    if device_map.advice:
        print(f"{shortened(placed.problem.graph.name)}: {device_map}", file=sys.stderr)
    return json.dumps(dict(device_map.devices), indent=2) + "\n"


@export("megatron", ending=".megatron.txt", has_replicas=True)
def megatron_layout(placed: PlacedModules) -> str:
    """Lays layers out for Megatron-LM: `E` embedding, `t` a layer, `m` one for further tokens, `L` loss.

    `|` is between stages. With several on a device, all stages of the first round come first. All `m` are in
    one stage of the last round, after all `t`. One `L` ends the layout, for all losses. The replicas are as
    many as there are processes for; with `--use-tp-pp-dp-mapping`, ranks of a replica follow each other.
    Sources: `validate_layer_layout` in megatron/core/transformer/pipeline_parallel_layer_layout.py;
    `validate_args` in megatron/training/arguments.py; `initialize_model_parallel`.
    """
    is_tied, predicted = _ends_are_tied(placed.tree), placed.tree.predicted()
    placed, ranks = placed.ranks("Megatron-LM", predicted)
    n_devices = len(set(placed.devices(ranks)))
    used = [rank for rank, paths in enumerate(ranks.values()) if paths]
    cells = [_repeated("t", sum(path not in predicted for path in layers)) for layers in ranks.values()]
    cells[max(len(cells) - n_devices, *used)] += _repeated("m", len(predicted))
    layout = "|".join(["E" + cells[0], *cells[1:]]) + "L"
    in_runs = len(placed.replicas) > 1 and sorted(sum(placed.replicas, ())) == [*sum(placed.replicas, ())]
    flags = [f"--pipeline-model-parallel-size {n_devices}"]
    flags += ["--use-tp-pp-dp-mapping"] * in_runs
    flags += ["--use-distributed-optimizer"] * placed.is_sharded
    flags += ["--untie-embeddings-and-output-weights"] * (not is_tied)
    batch = "--global-batch-size is {all} times --micro-batch-size"
    notes = [*placed.notes, *placed.batch_notes("Megatron-LM", batch, by_stage=not in_runs)]
    return f'{comments(notes)}{" ".join(flags)} --pipeline-model-parallel-layout "{layout}"\n'


def _ends_are_tied(tree: ModuleTree) -> bool:
    """Says whether modules outside the layers read one parameter, as an embedding and a head do."""
    graph = tree.graph
    readers = [[path.rpartition(".")[0] for path in paths] for paths in graph.tied]
    for op in np.flatnonzero(np.array(graph.op_types) == "parameter").tolist():
        forward = [reader for reader in graph.successors.row(op) if graph.phases[reader] == "forward"]
        readers.append([graph.modules[reader] for reader in forward])
    outside = ({path for path in paths if tree.layers.isdisjoint(above(path))} for paths in readers)
    return any(len(paths) > 1 for paths in outside)


def _repeated(letter: str, count: int) -> str:
    return f"{letter}*{count}" if count > 1 else letter * count


@export("deepspeed", ending=".deepspeed.py", has_replicas=True)
def deepspeed_parts(placed: PlacedModules) -> str:
    """Writes a subclass of DeepSpeed's `PipelineModule` whose stages begin at given layers.

    Its layers are the modules of the model in program order, which the comment lists. DeepSpeed makes as many
    replicas as there are processes for. Sources: `_partition_layers` in deepspeed/runtime/pipe/module.py;
    `PipeDataParallelTopology`.
    """
    placed.check_ranges("DeepSpeed")
    placed, parts = placed.parts(placed.tree.modules(placed.tree.opens))
    bounds = list(accumulate((len(run) for _, run in parts), initial=0))
    named = ", ".join(path for _, run in parts for path in run)
    notes = [*placed.notes, *placed.batch_notes("DeepSpeed", "gradient_accumulation_steps is {share}")]
    if placed.is_sharded:
        notes.append('"zero_optimization": {"stage": 1} divides the states of the optimizer')
    return f"""from deepspeed.pipe import PipelineModule

{comments(notes)}# layers: {named}


class PlacedPipeline(PipelineModule):
    def _partition_layers(self, method="uniform"):
        self.parts = {bounds}
        stage = self._topo.get_coord(self.global_rank).pipe
        self._set_bounds(start=self.parts[stage], stop=self.parts[stage + 1])
"""


@export("torchtitan", ending=".torchtitan.py", has_replicas=True)
def torchtitan_parts(placed: PlacedModules) -> str:
    """Names the modules of each stage for torchtitan: children of the model, and the members of its lists.

    Source: `ParallelismConfig`, `ParallelDims` and `pipeline_module_split` of torchtitan 0.3; a `Sequential`
    stays whole.

    Raises:
        ExportError: a child of the model is on several devices.
    """
    tree = placed.tree
    try:
        modules = tree.modules(lambda path: "." not in path and not tree.is_called(path))
        placed, parts = placed.parts(modules)
    except InputError as error:
        raise ExportError(
            f"torchtitan splits the children of a model and its ModuleLists and ModuleDicts alone: {error}, "
            "or place the module that has the layers in a list of its own"
        ) from None
    names = json.dumps([run for _, run in parts])
    degree = len(set(placed.devices([place for place, _ in parts])))
    settings = [f"pipeline_parallel_degree={degree}", f"module_fqns_per_model_part={names}"]
    if placed.torch_schedule:
        settings.append(f'pipeline_parallel_schedule="{placed.torch_schedule}"')
    batch = "local_batch_size is {share} times pipeline_parallel_microbatch_size"
    notes = [*placed.notes, *placed.batch_notes("torchtitan", batch)]
    if (n_replicas := len(placed.replicas)) > 1:
        n_shards = n_replicas if placed.is_sharded else 1
        settings.append(f"data_parallel_replicate_degree={n_replicas // n_shards}")
        settings.append(f"data_parallel_shard_degree={n_shards}")
        if placed.is_sharded:
            notes.append("torchtitan shards weights and gradients with optimizer states (FSDP, no ZeRO-1)")
    lines = "".join(f"    {setting},\n" for setting in settings)
    head = f"from torchtitan.config import ParallelismConfig\n\n{comments(notes)}"
    return f"{head}parallelism = ParallelismConfig(\n{lines})\n"
