"""The configuration of a training: one dataclass that command line, config file and `config.json` share."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import partial

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
main, problems, ppo, network, evaluation, run = (
    partial(option, group=group) for group in (MAIN, PROBLEMS, REINFORCEMENT, NETWORK, EVALUATION, RUN)
)
"""Makers of the settings under each heading."""


class ConfigError(InputError):
    """A configuration that cannot be trained with; the message names the key and what would be right."""


@dataclass(frozen=True)
class TrainConfig(Settings, error=ConfigError):
    """Everything that decides a training, all of it settable by flag or file.

    Raises:
        ConfigError: a value of the wrong type or out of range.
    """

    name: str = main("", "name of the run; it is written to runs/NAME")
    families: tuple[str, ...] = main((), "model families to train on")
    graphs: tuple[str, ...] = main(
        (), "files of graphs to train on (.json, .jsonl, either .gz)", metavar="FILE"
    )
    model: str | None = main(
        None,
        "function that returns (module, inputs); the policy is trained on its step",
        metavar="PKG.MOD:FUNCTION",
    )
    cluster: tuple[str, ...] = main(
        (DEFAULT_CLUSTER,),
        "clusters to place on: names, files, or `random`: one drawn for each graph and randomization",
        metavar="NAME|FILE",
        some=True,
    )
    order: tuple[str, ...] = main(("topo",), "traversal orders of the decisions", some=True)
    minutes: float = main(
        0.0, "time limit of the training; with --resume, counted from now; 0 = no limit", least=0
    )
    timesteps: int = main(1_000_000, "decisions to learn from", least=0)
    seed: int = main(0, "seed of all random draws", least=0, most=2**31 - 1)
    init: str = main(
        "", "policy to start from: a run's folder, `trial:STUDY/TRIAL`, or `pretrained`", metavar="DIR"
    )

    mdp: str = option_of(MdpConfig, "mdp", CONSTRUCT)
    start: str = option_of(MdpConfig, "start", BEST)
    passes: int = option_of(MdpConfig, "passes", 2)
    mask: str = option_of(MdpConfig, "mask", FREE_MEMORY)
    memory_penalty: float = option_of(MdpConfig, "memory_penalty", 1.0)
    feature_set: str = problems(
        "rollout", "features of a device; each set includes the sets after it", choices=tuple(FEATURE_SETS)
    )
    randomizations: int = problems(
        0, "randomized clusters for each graph; 0 = only the named clusters", least=0, most=10_000
    )
    granularity: tuple[str, ...] = problems(
        ("op",),
        "what one decision places; with several values, every graph is used at each granularity",
        choices=GRANULARITIES,
        some=True,
    )
    optimizer: str = problems("adam", "optimizer in the step of --model, from torch.optim")
    inference: bool = problems(False, "place only the forward pass of --model")
    reward: str = problems(
        SIMULATED,
        "source of step times; measured: runs --model on the devices of this machine",
        choices=REWARDS,
    )
    measured_steps: int = problems(20, "timed steps per measured placement, after a warm-up", least=20)
    measure_timeout: float = problems(
        120.0, "seconds after which the measurement of a placement fails", above=0
    )

    learning_rate: float = ppo(1e-3, "learning rate of Adam; decreases linearly", above=0, most=LARGEST)
    final_learning_rate: float = ppo(5e-5, "learning rate at the end of training", least=0, most=LARGEST)
    entropy: float = ppo(0.002, "weight of the entropy bonus; decreases linearly", least=0, most=LARGEST)
    final_entropy: float = ppo(
        0.0002, "weight of the entropy bonus at the end of training", least=0, most=LARGEST
    )
    n_envs: int = ppo(128, "episodes that run at the same time", least=1, most=65_536)
    repeats: int = ppo(
        16, "of these episodes, those of one graph; more repeats mean fewer graphs to encode", least=1
    )
    n_steps: int = ppo(256, "decisions of each episode between two updates", least=2)
    batch_size: int = ppo(4096, "decisions in a minibatch", least=2)
    epochs: int = ppo(3, "passes over the decisions of an update", least=1)
    advantage: str = ppo(
        "op",
        "decisions that a decision is compared with: those on the same op, the same graph, or the same batch",
        choices=ADVANTAGES,
    )
    share: float = ppo(
        0.3,
        "share of the decisions that an update learns from, those with great advantages likeliest",
        above=0,
        most=1,
    )
    gae_lambda: float = ppo(1.0, "lambda of generalised advantage estimation", least=0, most=1)
    clip: float = ppo(0.2, "clip range of PPO", above=0, most=LARGEST)
    value_weight: float = ppo(0.5, "weight of the value loss", least=0, most=LARGEST)
    max_grad_norm: float = ppo(0.5, "gradients are clipped to this norm", above=0, most=LARGEST)

    encoder: str = network("sage", "graph encoder")
    freeze_encoder: bool = network(
        False, "keep the weights of the graph encoder, so that each graph is encoded once"
    )
    hidden: int = network(64, "width of the embeddings and the head", least=1, most=4096)
    rounds: int = network(4, "rounds of message passing", least=1, most=64)
    ema_decay: float = network(
        0.95,
        "decay of the EMA of the weights at each update; the averaged policy is evaluated and saved",
        least=0,
        most=0.9999,
    )

    holdout: float = evaluation(0.25, "share of each family's graphs that is held out", least=0, most=0.5)
    validation: float = evaluation(
        0.125, "share of the graphs that is used only to choose the best policy", least=0, most=0.5
    )
    eval_every: int = evaluation(15, "updates between two evaluations", least=1)

    plugin: tuple[str, ...] = run(
        (), "your own files or modules that register orders, placers, ...", metavar="FILE|MODULE"
    )
    checkpoint_every: int = run(10, "updates between two checkpoints", least=1)
    threads: int = run(
        2,
        "threads for rollouts and updates; the policy depends slightly on their number, which changes the "
        "order in which gradients are summed",
        least=1,
        most=1024,
    )
    device: str = run("cpu", "torch device of the network")
    max_decompressed_bytes: int = run(
        MAX_DECOMPRESSED_BYTES, "largest decompressed size of a .gz graph file", least=1
    )
    context: str = run("local", "how the training runs", choices=CONTEXTS)

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
