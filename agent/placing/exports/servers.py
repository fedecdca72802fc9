"""Exports for servers of language models: vLLM, SGLang, llama.cpp."""

from __future__ import annotations

from collections.abc import Sequence

from agent.placing.exports.export import ExportError, PlacedModules, comments, export
from envs.cluster.kinds import CPU_KINDS
from graphs.system.errors import shortened

EXPERTS = "experts"
"""Name of the module of a mixture's experts, as in models of transformers."""


@export("vllm", ending=".vllm.env")
def vllm_partition(placed: PlacedModules) -> str:
    """Counts the layers of each pipeline rank for vLLM.

    Source: `get_pp_indices` in vllm/distributed/utils.py: as many numbers as ranks, their sum the layers.
    """
    return _partition(placed, "VLLM_PP_LAYER_PARTITION", "vLLM")


@export("sglang", ending=".sglang.env")
def sglang_partition(placed: PlacedModules) -> str:
    """Counts the layers of each pipeline rank for SGLang, whose rule is that of vLLM."""
    return _partition(placed, "SGLANG_PP_LAYER_PARTITION", "SGLang")


def _partition(placed: PlacedModules, variable: str, target: str) -> str:
    placed.check_ranges(target)
    placed, ranks = placed.ranks(target)
    names = ", ".join(placed.device_names[device] for device in placed.devices(ranks))
    head = f"--pipeline-parallel-size {len(ranks)}; ranks in order: {names}"
    counts = ",".join(str(len(layers)) for layers in ranks.values())
    return f"{comments([head, *placed.notes])}{variable}={counts}\n"


@export("llama.cpp", ending=".llama.cpp.txt")
def llama_cpp_arguments(placed: PlacedModules) -> str:
    """Splits layers over GPUs for llama.cpp; layers on a CPU come first, and experts may stay there.

    The output is counted as a layer after the last one; the input embedding is always on the CPU. Source:
    `llama_model::load_tensors` in src/llama-model.cpp: the last `-ngl` of layers and output are on GPUs,
    `-ts` is their share, and `-ot` keeps tensors elsewhere.

    Raises:
        ExportError: GPU layers before CPU layers, parts of a layer on several devices that are no experts.
    """
    placed.check_ranges("llama.cpp")
    kinds = [device.kind for device in placed.problem.cluster.devices]
    is_cpu = [kind.startswith(CPU_KINDS) for kind in kinds]
    devices, on_cpu = _layer_devices(placed, is_cpu)
    n_cpu = next((number for number, device in enumerate(devices) if not is_cpu[device]), len(devices))
    gpus = devices[n_cpu:]
    order = list(dict.fromkeys(gpus))
    if any(is_cpu[device] for device in gpus):
        n_gpu = sum(not is_cpu[device] for device in gpus)
        raise ExportError(
            "llama.cpp runs the first layers on the CPU, and this placement later ones; use -ngl "
            f"{n_gpu}, which counts the output as a layer"
        )
    if sorted(gpus, key=order.index) != gpus:
        raise ExportError(
            "llama.cpp gives each GPU one range of layers; place with --pipeline, or with granularity layer"
        )
    if not gpus:
        return "-ngl 0\n"
    slots = [*gpus, gpus[-1]]  # the output goes with the last layer
    cards = [device for device, cpu in enumerate(is_cpu) if not cpu]
    names = ",".join(f"CUDA{cards.index(device)}" for device in order)
    shares = ",".join(str(slots.count(device)) for device in order)
    arguments = f"--device {names} -ngl {len(slots)} -ts {shares}"
    if on_cpu:
        arguments += f' -ot "blk\\.({"|".join(map(str, on_cpu))})\\.ffn_.*_exps\\.=CPU"'
    return f"{arguments}\n"


def _layer_devices(placed: PlacedModules, is_cpu: Sequence[bool]) -> tuple[list[int], list[int]]:
    """Returns the device of each layer, and the layers whose experts alone are on a CPU.

    Raises:
        ExportError: a layer has ops on several devices otherwise.
    """
    graph, device_of = placed.problem.graph, placed.placement.device_of
    devices: list[int] = []
    on_cpu: list[int] = []
    for path, ops in placed.tree.ops(placed.layer_list("llama.cpp")).items():
        used = set(device_of[ops].tolist())
        rest = {int(device_of[op]) for op in ops if EXPERTS not in graph.modules[op].split(".")}
        if len(used) > 1 and len(rest) == 1 and all(is_cpu[device] for device in used - rest):
            on_cpu.append(len(devices))
        elif len(used) > 1:
            raise ExportError(
                f"module '{shortened(path)}' is on several devices, and llama.cpp splits layers at their "
                "experts alone; place with granularity layer"
            )
        devices.append(next(iter(rest or used)))
    return devices, on_cpu
