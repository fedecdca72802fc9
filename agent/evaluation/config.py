"""The settings of an evaluation: one dataclass that makes the flags of `evaluate.py`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from agent.placing.request import BUDGET
from envs.cluster.host import HOSTS
from envs.cluster.presets import DEFAULT_CLUSTER
from envs.pipeline.pipeline import GPIPE, INTERLEAVED, MAX_MICROBATCHES, ONE_F_ONE_B, ZERO_BUBBLE
from graphs.step_settings import GRANULARITIES, KEPT_DTYPES, OPTIMIZER_NAMES, PRECISIONS
from graphs.system.errors import InputError
from graphs.system.json_files import MAX_DECOMPRESSED_BYTES
from graphs.system.settings import Settings, option

ALL = "all"
MANY = 10_000
"""The greatest number of seeds, and of placements to measure."""
GRAPHS, CLUSTERS = "graphs (at least one source)", "clusters"
PLACERS, POLICY, RUN = "placers and what each may spend", "policy", "run"
"""Headings of the command line's help."""
of_graphs, of_clusters, of_placers, of_policy = (
    partial(option, group=group) for group in (GRAPHS, CLUSTERS, PLACERS, POLICY)
)
"""Makers of the settings under each heading."""


class EvaluationError(InputError):
    """An evaluation that cannot be made as asked; the message says what would be right."""


@dataclass(frozen=True)
class EvaluationConfig(Settings, error=EvaluationError):
    """Everything that decides what an evaluation finds, all of it settable by flag.

    Raises:
        EvaluationError: a value of the wrong type or out of range.
    """

    families: tuple[str, ...] = of_graphs((), "families of the benchmark set")
    graphs: tuple[str, ...] = of_graphs(
        (), "graph files (.json or .jsonl, or with .gz), or instances such as doppler:*", metavar="FILE|NAME"
    )
    model: str | None = of_graphs(
        None, "function that returns (module, inputs); its step is placed", metavar="PKG.MOD:FUNCTION"
    )
    optimizer: str = of_graphs(
        "adam",
        "optimizer in the model's training step: a class of torch.optim in lower case, with options as in "
        "sgd:momentum=0.9",
    )
    master_weights: str | None = of_graphs(
        None, "type in which the optimizer keeps and updates a copy of narrower weights", choices=KEPT_DTYPES
    )
    gradient_dtype: str | None = of_graphs(
        None,
        "type in which gradients are accumulated",
        choices=KEPT_DTYPES,
        default_text="that of the weights",
    )
    inference: bool = of_graphs(False, "capture only the forward pass of the model")
    prompt: int | None = of_graphs(
        None,
        "capture the inference of one token by a model of transformers, with the keys and values of P tokens "
        "before it in its cache",
        least=1,
        metavar="P",
        default_text="the step of the inputs",
    )
    split: str | None = of_graphs(
        None,
        "cut the inputs of the model, a whole batch, into N microbatches of a pipeline; auto: of at most 5 "
        "numbers, that of the shortest step",
        metavar="N|auto",
        default_text="the inputs are one microbatch",
    )
    batch_dim: int = of_graphs(0, "dimension of the inputs that --split cuts", least=0, metavar="D")
    split_inputs: tuple[str, ...] = of_graphs(
        (),
        "inputs that --split cuts, by keyword or position",
        metavar="INPUT",
        default_text="those that have the most common size in that dimension",
    )
    precision: str | None = of_graphs(
        None,
        "precision in which the costs of fp32 graphs are computed",
        choices=PRECISIONS,
        default_text="as captured",
    )
    granularity: str = of_graphs("op", "what one decision places, by module path", choices=GRANULARITIES)
    include_seen: bool = of_graphs(False, "keep graphs that the policy was trained on")
    max_decompressed_bytes: int = of_graphs(
        MAX_DECOMPRESSED_BYTES, "largest decompressed size of a .gz graph file", least=1
    )

    cluster: tuple[str, ...] | None = of_clusters(
        None,
        "names of --list-clusters, or files; without them, instances have their own",
        metavar="NAME|FILE",
        some=True,
        default_text=DEFAULT_CLUSTER,
    )
    host: str | None = of_clusters(
        None,
        "how the host issues a step to GPUs: op by op, as a captured CUDA graph, or in no time",
        choices=HOSTS,
        default_text="what the cluster says; calibrated presets: eager",
    )

    pipeline: str = of_placers(
        "",
        f"place a pipeline of microbatches: {GPIPE}, {ONE_F_ONE_B}, {INTERLEAVED}:V (V stages on each "
        f"device) or {ZERO_BUBBLE}; auto: the one with the shortest step; each graph is the step of one "
        "microbatch",
        metavar="SCHEDULE",
        default_text="one batch at a time",
    )
    microbatches: int | None = of_placers(
        None,
        "microbatches in a step of the pipeline",
        least=1,
        most=MAX_MICROBATCHES,
        default_text="those of --split, or 8",
    )
    replicas: str | None = of_placers(
        None,
        "groups of devices that each run the pipeline on a share of the microbatches; auto: of the numbers "
        "that divide devices and microbatches, that of the shortest step",
        metavar="N|auto",
        default_text="1",
    )
    shard_optimizer: bool = of_placers(
        False, "divide the optimizer's states and updates among replicas (ZeRO-1)"
    )
    placers: tuple[str, ...] | None = of_placers(
        None, "names, data-parallel, or all", default_text="all; none with --placements"
    )
    placements: tuple[str, ...] = of_placers((), "placement files to score", metavar="FILE")
    budget: int | None = of_placers(
        None, "evaluations per trial", least=1, default_text=f"{BUDGET}; no limit with --seconds"
    )
    seconds: float | None = of_placers(
        None, "wall time per trial", above=0, metavar="S", default_text="no limit"
    )
    seeds: int = of_placers(3, "trials of each placer that uses randomness", least=1, most=MANY)

    plugin: tuple[str, ...] = of_placers(
        (), "your own files or modules that register placers, orders, ...", metavar="FILE|MODULE"
    )

    policy: str = of_policy(
        "pretrained", "a run's folder, or pretrained: the shipped policy for the granularity", metavar="DIR"
    )
    orders: tuple[str, ...] = of_policy(("topo",), "orders in which policies visit ops, or all", some=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.optimizer.partition(":")[0] not in OPTIMIZER_NAMES:
            raise EvaluationError(f"optimizer is '{self.optimizer}'; use {' or '.join(OPTIMIZER_NAMES)}")

    @property
    def capture_settings(self) -> dict[str, Any]:
        """The settings with which a model's step is captured."""
        names = "optimizer", "master_weights", "gradient_dtype"
        return {name: getattr(self, name) for name in names} | {"training": not self.inference}
