"""What the targets of exports do with a text, written from the rules in their sources."""

from __future__ import annotations

import re
from bisect import bisect_right


def pp_indices(text: str, variable: str, n_layers: int, n_ranks: int) -> list[tuple[int, int]]:
    """Ranges of layers of vLLM and SGLang: `get_pp_indices` in their distributed/utils.py."""
    (line,) = [line for line in text.splitlines() if not line.startswith("#")]
    name, _, value = line.partition("=")
    assert name == variable
    counts = [int(count) for count in value.split(",")]
    if len(counts) != n_ranks or sum(counts) != n_layers:
        raise ValueError(f"{counts} for {n_ranks} ranks and {n_layers} layers")
    ends = [sum(counts[: at + 1]) for at in range(n_ranks)]
    return [(end - count, end) for count, end in zip(counts, ends, strict=True)]


def llama_devices(text: str, n_layers: int) -> tuple[list[str], list[int]]:
    """Device of each layer and of the output, and layers with experts on the CPU, in llama.cpp.

    `llama_model::load_tensors`: the last `-ngl` of layers and output are on GPUs; a layer is on the first
    device whose cumulated share is above its own.
    """
    words = re.findall(r'"[^"]*"|\S+', text.strip())
    flags = dict(zip(words[::2], words[1::2], strict=True))
    n_gpu = int(flags["-ngl"])
    start = max(n_layers + 1 - n_gpu, 0)
    n_acting = min(n_gpu, n_layers + 1)
    shares = [float(share) for share in flags.get("-ts", "").split(",") if share]
    ends = [sum(shares[: at + 1]) / sum(shares) for at in range(len(shares))]
    names = flags.get("--device", "").split(",")
    found = [
        "CPU" if layer < start else names[bisect_right(ends, (layer - start) / n_acting)]
        for layer in range(n_layers + 1)
    ]
    regex = flags.get("-ot", '"$^=CPU"').strip('"').removesuffix("=CPU")
    on_cpu = [layer for layer in range(n_layers) if re.search(regex, f"blk.{layer}.ffn_down_exps.weight")]
    return found, on_cpu


def megatron_stages(text: str) -> list[str]:
    """Letters of each stage: `parse_str_to_list` and `validate_layer_layout` of Megatron's layer layout."""
    layout = re.search(r'--pipeline-model-parallel-layout "([^"]*)"', text)
    assert layout
    letters = layout[1].replace(",", "")
    for pattern in (r"\(([^)]+)\)\*(\d+)", r"(.)\*(\d+)"):
        letters = re.sub(pattern, lambda found: found[1] * int(found[2]), letters)
    assert set(letters) <= set("EtmL|")
    flat = letters.replace("|", "")
    assert "t" not in flat.partition("m")[2]
    assert flat[0] == "E"
    assert flat[-1] == "L"
    assert flat.count("E") == flat.count("L") == 1
    stages = letters.split("|")
    size = re.search(r"--pipeline-model-parallel-size (\d+)", text)
    assert size
    assert len(stages) % int(size[1]) == 0
    predicting = [at for at, stage in enumerate(stages) if "m" in stage]
    assert len(predicting) < 2
    assert all(at >= len(stages) - int(size[1]) for at in predicting)
    return stages


def deepspeed_ranges(text: str, n_layers: int, stage: int) -> tuple[int, int]:
    """Range of a stage: runs the text with a stand-in for DeepSpeed's `PipelineModule`."""
    found: list[int] = []

    class PipelineModule:
        def __init__(self, stage: int) -> None:
            self.global_rank, self._stage = 0, stage
            self._partition_layers(method="parameters")

        @property
        def _topo(self) -> PipelineModule:
            return self

        def get_coord(self, rank: int) -> PipelineModule:
            return self

        @property
        def pipe(self) -> int:
            return self._stage

        def _partition_layers(self, method: str = "uniform") -> None:
            raise NotImplementedError

        def _set_bounds(self, start: int, stop: int) -> None:
            found.extend((start, stop))

    code = text.replace("from deepspeed.pipe import PipelineModule\n", "")
    namespace = {"PipelineModule": PipelineModule}
    exec(code, namespace)
    module = namespace["PlacedPipeline"](stage)
    assert module.parts[0] == 0
    assert module.parts[-1] == n_layers
    return found[0], found[1]


def torchtitan_settings(text: str) -> dict[str, object]:
    """Settings of a text: runs it with a stand-in for torchtitan's `ParallelismConfig`."""
    imported = "from torchtitan.config import ParallelismConfig\n"
    assert text.startswith(imported)
    namespace: dict[str, dict[str, object]] = {}
    exec(text.removeprefix(imported), {"ParallelismConfig": dict}, namespace)
    return namespace["parallelism"]
