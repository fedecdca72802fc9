"""The configuration of a training: one dataclass that command line, config file and `config.json` share."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from agent.policy.mdp_config import BEST, GROUP, MdpConfig
from envs.cluster.presets import DEFAULT_CLUSTER
from envs.placement import CONSTRUCT, FREE_MEMORY
from envs.placement.observation.features import FEATURE_SETS
from graphs.step_settings import GRANULARITIES
from graphs.system.errors import InputError
from graphs.system.json_files import MAX_DECOMPRESSED_BYTES
from graphs.system.settings import OPTION, Settings, option, option_of

SIMULATED, MEASURED = REWARDS = ("simulated", "measured")
CONTEXTS = ("local", "search", "ablation", "grid", "distributed")
ADVANTAGES = ("op", "graph", "batch")
EXTENDABLE = ("name", "timesteps", "minutes", "max_decompressed_bytes")
"""Settings that `--resume` may change."""

LARGEST = 1e30
"""Rates and weights beyond this overflow the 32-bit floats that they are computed with."""

MAIN, PROBLEMS = "what matters most", GROUP
REINFORCEMENT, NETWORK, EVALUATION, RUN = "reinforcement (PPO)", "network", "evaluation", "run"
"""Headings of the command line's help."""


class ConfigError(InputError):
    """A configuration that cannot be trained with; the message names the key and what would be right."""


@dataclass(frozen=True)
class TrainConfig(Settings, error=ConfigError):
    """Everything that decides a training, all of it settable by flag or file.

    Raises:
        ConfigError: a value of the wrong type or out of range.
    """

    name: str = option("", "name of the run; it is written to runs/NAME", group=MAIN)
    families: tuple[str, ...] = option((), "model families to train on", group=MAIN)
    graphs: tuple[str, ...] = option(
        (), "files of graphs to train on (.json, .jsonl, either .gz)", group=MAIN, metavar="FILE"
    )
    model: str | None = option(
        None,
        "function that returns (module, inputs); the policy is trained on its step",
        group=MAIN,
        metavar="PKG.MOD:FUNCTION",
    )
    cluster: tuple[str, ...] = option(
        (DEFAULT_CLUSTER,),
        "clusters to place on: names, files, or `random`: one drawn for each graph and randomization",
        group=MAIN,
        metavar="NAME|FILE",
        some=True,
    )
    order: tuple[str, ...] = option(("topo",), "traversal orders of the decisions", group=MAIN, some=True)
    minutes: float = option(
        0.0, "time limit of the training; with --resume, counted from now; 0 = no limit", group=MAIN, least=0
    )
    timesteps: int = option(1_000_000, "decisions to learn from", group=MAIN, least=0)
    seed: int = option(0, "seed of all random draws", group=MAIN, least=0, most=2**31 - 1)
    init: str = option(
        "",
        "policy to start from: a run's folder, `trial:STUDY/TRIAL`, or `pretrained`",
        group=MAIN,
        metavar="DIR",
    )

    mdp: str = option_of(MdpConfig, "mdp", CONSTRUCT)
    start: str = option_of(MdpConfig, "start", BEST)
    passes: int = option_of(MdpConfig, "passes", 2)
    mask: str = option_of(MdpConfig, "mask", FREE_MEMORY)
    memory_penalty: float = option_of(MdpConfig, "memory_penalty", 1.0)
    feature_set: str = option(
        "rollout",
        "features of a device; each set includes the sets after it",
        group=PROBLEMS,
        choices=tuple(FEATURE_SETS),
    )
    randomizations: int = option(
        0,
        "randomized clusters for each graph; 0 = only the named clusters",
        group=PROBLEMS,
        least=0,
        most=10_000,
    )
    granularity: tuple[str, ...] = option(
        ("op",),
        "what one decision places; with several values, every graph is used at each granularity",
        group=PROBLEMS,
        choices=GRANULARITIES,
        some=True,
    )
    optimizer: str = option("adam", "optimizer in the step of --model, from torch.optim", group=PROBLEMS)
    inference: bool = option(False, "place only the forward pass of --model", group=PROBLEMS)
    reward: str = option(
        SIMULATED,
        "source of step times; measured: runs --model on the devices of this machine",
        group=PROBLEMS,
        choices=REWARDS,
    )
    measured_steps: int = option(
        20, "timed steps per measured placement, after a warm-up", group=PROBLEMS, least=20
    )
    measure_timeout: float = option(
        120.0, "seconds after which the measurement of a placement fails", group=PROBLEMS, above=0
    )

    learning_rate: float = option(
        1e-3, "learning rate of Adam; decreases linearly", group=REINFORCEMENT, above=0, most=LARGEST
    )
    final_learning_rate: float = option(
        5e-5, "learning rate at the end of training", group=REINFORCEMENT, least=0, most=LARGEST
    )
    entropy: float = option(
        0.002, "weight of the entropy bonus; decreases linearly", group=REINFORCEMENT, least=0, most=LARGEST
    )
    final_entropy: float = option(
        0.0002,
        "weight of the entropy bonus at the end of training",
        group=REINFORCEMENT,
        least=0,
        most=LARGEST,
    )
    n_envs: int = option(128, "episodes that run at the same time", group=REINFORCEMENT, least=1, most=65_536)
    repeats: int = option(
        16,
        "of these episodes, those of one graph; more repeats mean fewer graphs to encode",
        group=REINFORCEMENT,
        least=1,
    )
    n_steps: int = option(256, "decisions of each episode between two updates", group=REINFORCEMENT, least=2)
    batch_size: int = option(4096, "decisions in a minibatch", group=REINFORCEMENT, least=2)
    epochs: int = option(3, "passes over the decisions of an update", group=REINFORCEMENT, least=1)
    advantage: str = option(
        "op",
        "decisions that a decision is compared with: those on the same op, the same graph, or the same batch",
        group=REINFORCEMENT,
        choices=ADVANTAGES,
    )
    share: float = option(
        0.3,
        "share of the decisions that an update learns from, those with great advantages likeliest",
        group=REINFORCEMENT,
        above=0,
        most=1,
    )
    gae_lambda: float = option(
        1.0, "lambda of generalised advantage estimation", group=REINFORCEMENT, least=0, most=1
    )
    clip: float = option(0.2, "clip range of PPO", group=REINFORCEMENT, above=0, most=LARGEST)
    value_weight: float = option(0.5, "weight of the value loss", group=REINFORCEMENT, least=0, most=LARGEST)
    max_grad_norm: float = option(
        0.5, "gradients are clipped to this norm", group=REINFORCEMENT, above=0, most=LARGEST
    )

    encoder: str = option("sage", "graph encoder", group=NETWORK)
    freeze_encoder: bool = option(
        False, "keep the weights of the graph encoder, so that each graph is encoded once", group=NETWORK
    )
    hidden: int = option(64, "width of the embeddings and the head", group=NETWORK, least=1, most=4096)
    rounds: int = option(4, "rounds of message passing", group=NETWORK, least=1, most=64)
    ema_decay: float = option(
        0.95,
        "decay of the EMA of the weights at each update; the averaged policy is evaluated and saved",
        group=NETWORK,
        least=0,
        most=0.9999,
    )

    holdout: float = option(
        0.25, "share of each family's graphs that is held out", group=EVALUATION, least=0, most=0.5
    )
    validation: float = option(
        0.125,
        "share of the graphs that is used only to choose the best policy",
        group=EVALUATION,
        least=0,
        most=0.5,
    )
    eval_every: int = option(15, "updates between two evaluations", group=EVALUATION, least=1)

    plugin: tuple[str, ...] = option(
        (), "your own files or modules that register orders, placers, ...", group=RUN, metavar="FILE|MODULE"
    )
    checkpoint_every: int = option(10, "updates between two checkpoints", group=RUN, least=1)
    threads: int = option(
        2,
        "threads for rollouts and updates; the policy depends slightly on their number, which changes the "
        "order in which gradients are summed",
        group=RUN,
        least=1,
        most=1024,
    )
    device: str = option("cpu", "torch device of the network", group=RUN)
    max_decompressed_bytes: int = option(
        MAX_DECOMPRESSED_BYTES, "largest decompressed size of a .gz graph file", group=RUN, least=1
    )
    context: str = option("local", "how the training runs", group=RUN, choices=CONTEXTS)

    @property
    def limit_s(self) -> float:
        """Returns the time limit in seconds; infinite if `minutes` is 0."""
        return 60 * self.minutes if self.minutes else math.inf


DECISIVE = tuple(
    item.name
    for item in fields(TrainConfig)
    if item.name not in EXTENDABLE and item.metadata[OPTION].group != RUN
)
"""Settings that decide what is learned and stay the same within a run."""
