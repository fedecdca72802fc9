"""The settings of an evaluation: one dataclass that makes the flags of `evaluate.py`."""

from __future__ import annotations

from dataclasses import dataclass
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


class EvaluationError(InputError):
    """An evaluation that cannot be made as asked; the message says what would be right."""


@dataclass(frozen=True)
class EvaluationConfig(Settings, error=EvaluationError):
    """Everything that decides what an evaluation finds, all of it settable by flag.

    Raises:
        EvaluationError: a value of the wrong type or out of range.
    """

    families: tuple[str, ...] = option((), "families of the benchmark set", group=GRAPHS)
    graphs: tuple[str, ...] = option(
        (),
        "graph files (.json or .jsonl, or with .gz), or instances such as doppler:*",
        group=GRAPHS,
        metavar="FILE|NAME",
    )
    model: str | None = option(
        None,
        "function that returns (module, inputs); its step is placed",
        group=GRAPHS,
        metavar="PKG.MOD:FUNCTION",
    )
    optimizer: str = option(
        "adam",
        "optimizer in the model's training step: a class of torch.optim in lower case, with options as in "
        "sgd:momentum=0.9",
        group=GRAPHS,
    )
    master_weights: str | None = option(
        None,
        "type in which the optimizer keeps and updates a copy of narrower weights",
        group=GRAPHS,
        choices=KEPT_DTYPES,
    )
    gradient_dtype: str | None = option(
        None,
        "type in which gradients are accumulated",
        group=GRAPHS,
        choices=KEPT_DTYPES,
        default_text="that of the weights",
    )
    inference: bool = option(False, "capture only the forward pass of the model", group=GRAPHS)
    prompt: int | None = option(
        None,
        "capture the inference of one token by a model of transformers, with the keys and values of P tokens "
        "before it in its cache",
        group=GRAPHS,
        least=1,
        metavar="P",
        default_text="the step of the inputs",
    )
    split: str | None = option(
        None,
        "cut the inputs of the model, a whole batch, into N microbatches of a pipeline; auto: of at most 5 "
        "numbers, that of the shortest step",
        group=GRAPHS,
        metavar="N|auto",
        default_text="the inputs are one microbatch",
    )
    batch_dim: int = option(
        0, "dimension of the inputs that --split cuts", group=GRAPHS, least=0, metavar="D"
    )
    split_inputs: tuple[str, ...] = option(
        (),
        "inputs that --split cuts, by keyword or position",
        group=GRAPHS,
        metavar="INPUT",
        default_text="those that have the most common size in that dimension",
    )
    precision: str | None = option(
        None,
        "precision in which the costs of fp32 graphs are computed",
        group=GRAPHS,
        choices=PRECISIONS,
        default_text="as captured",
    )
    granularity: str = option(
        "op", "what one decision places, by module path", group=GRAPHS, choices=GRANULARITIES
    )
    include_seen: bool = option(False, "keep graphs that the policy was trained on", group=GRAPHS)
    max_decompressed_bytes: int = option(
        MAX_DECOMPRESSED_BYTES, "largest decompressed size of a .gz graph file", group=GRAPHS, least=1
    )

    cluster: tuple[str, ...] | None = option(
        None,
        "names of --list-clusters, or files; without them, instances have their own",
        group=CLUSTERS,
        metavar="NAME|FILE",
        some=True,
        default_text=DEFAULT_CLUSTER,
    )
    host: str | None = option(
        None,
        "how the host issues a step to GPUs: op by op, as a captured CUDA graph, or in no time",
        group=CLUSTERS,
        choices=HOSTS,
        default_text="what the cluster says; calibrated presets: eager",
    )

    pipeline: str = option(
        "",
        f"place a pipeline of microbatches: {GPIPE}, {ONE_F_ONE_B}, {INTERLEAVED}:V (V stages on each "
        f"device) or {ZERO_BUBBLE}; auto: the one with the shortest step; each graph is the step of one "
        "microbatch",
        group=PLACERS,
        metavar="SCHEDULE",
        default_text="one batch at a time",
    )
    microbatches: int | None = option(
        None,
        "microbatches in a step of the pipeline",
        group=PLACERS,
        least=1,
        most=MAX_MICROBATCHES,
        default_text="those of --split, or 8",
    )
    replicas: str | None = option(
        None,
        "groups of devices that each run the pipeline on a share of the microbatches; auto: of the numbers "
        "that divide devices and microbatches, that of the shortest step",
        group=PLACERS,
        metavar="N|auto",
        default_text="1",
    )
    shard_optimizer: bool = option(
        False, "divide the optimizer's states and updates among replicas (ZeRO-1)", group=PLACERS
    )
    placers: tuple[str, ...] | None = option(
        None, "names, data-parallel, or all", group=PLACERS, default_text="all; none with --placements"
    )
    placements: tuple[str, ...] = option((), "placement files to score", group=PLACERS, metavar="FILE")
    budget: int | None = option(
        None,
        "evaluations per trial",
        group=PLACERS,
        least=1,
        default_text=f"{BUDGET}; no limit with --seconds",
    )
    seconds: float | None = option(
        None, "wall time per trial", group=PLACERS, above=0, metavar="S", default_text="no limit"
    )
    seeds: int = option(3, "trials of each placer that uses randomness", group=PLACERS, least=1, most=MANY)

    plugin: tuple[str, ...] = option(
        (),
        "your own files or modules that register placers, orders, ...",
        group=PLACERS,
        metavar="FILE|MODULE",
    )

    policy: str = option(
        "pretrained",
        "a run's folder, or pretrained: the shipped policy for the granularity",
        group=POLICY,
        metavar="DIR",
    )
    orders: tuple[str, ...] = option(
        ("topo",), "orders in which policies visit ops, or all", group=POLICY, some=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.optimizer.partition(":")[0] not in OPTIMIZER_NAMES:
            raise EvaluationError(f"optimizer is '{self.optimizer}'; use {' or '.join(OPTIMIZER_NAMES)}")

    @property
    def capture_settings(self) -> dict[str, Any]:
        """The settings with which a model's step is captured."""
        names = "optimizer", "master_weights", "gradient_dtype"
        return {name: getattr(self, name) for name in names} | {"training": not self.inference}
