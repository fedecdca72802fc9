"""The configuration of a training: one dataclass that command line, config file and `config.json` share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import Field, asdict, dataclass, field, fields, replace
from typing import Any, get_args, get_origin, get_type_hints

MDPS = ("construct", "improve")
REWARDS = ("simulated",)
STARTS = ("best", "single", "heft", "m-etf", "rollout", "m-topo", "contiguous", "memory-fill")
CONTEXTS = ("local",)
FEATURE_SETS = ("rollout", "consumers", "lookahead", "state")
ADVANTAGES = ("op", "graph", "batch")


class ConfigError(ValueError):
    """A configuration that cannot be trained with; the message names the key and what would be right."""


def _option(default: Any, description: str, **rules: Any) -> Any:
    """A field with its help text and rules: `least`, `above`, `most`, `choices`, `planned`, `some`."""
    return field(default=default, metadata={"help": description, **rules})


@dataclass(frozen=True)
class TrainConfig:
    """Everything that decides a training, all of it settable by flag or file.

    Raises:
        ConfigError: a value of the wrong type or out of range.
    """

    name: str = _option("", "name of the run; it is written to runs/NAME")
    families: tuple[str, ...] = _option((), "model families to train on")
    graphs: tuple[str, ...] = _option((), "files of graphs to train on (.json, .jsonl, either .gz)")
    cluster: tuple[str, ...] = _option(("4xv100",), "clusters to place on: presets or files", some=True)
    randomizations: int = _option(
        0, "varied clusters to train each graph on; 0 = on each of the named clusters as it is", least=0
    )
    order: tuple[str, ...] = _option(("topo",), "traversal orders to walk in", some=True)
    mdp: str = _option("construct", "place every op once, or improve a placement", choices=MDPS)
    start: str = _option(
        "best", "placer whose placement `improve` starts from; `best` = the best of them", choices=STARTS
    )
    passes: int = _option(2, "times that `improve` visits every op", least=1, most=100)
    encoder: str = _option("sage", "graph encoder")
    feature_set: str = _option(
        "rollout",
        "what the policy sees of a device: its state; also what it would do; also for the op's consumers; "
        "also how the walk would go on by a simple rule",
        choices=FEATURE_SETS,
    )
    reward: str = _option("simulated", "what times a placement", choices=REWARDS, planned=("measured",))
    context: str = _option(
        "local", "where it runs", choices=CONTEXTS, planned=("search", "ablation", "grid", "distributed")
    )
    init: str = _option("", "policy to start from: a run's directory, or `pretrained`")
    demonstrations: int = _option(4, "searched placements of each graph to imitate first", least=0)
    search: int = _option(50_000, "evaluations of the annealing that finds one", least=1)
    imitation_epochs: int = _option(25, "passes over the demonstrations", least=0)
    dagger_rounds: int = _option(20, "rounds of correcting the policy's own placements after that", least=0)
    imitation_rate: float = _option(
        2e-3, "learning rate of imitation; falls to `final_learning_rate`", above=0
    )
    dagger_rate: float = _option(1e-3, "of practice; falls likewise", above=0)
    timesteps: int = _option(1_000_000, "decisions to train for by reinforcement", least=0)
    minutes: float = _option(0.0, "stop after this long even if decisions are left; 0 = no limit", least=0)
    seed: int = _option(0, "seed of everything random", least=0, most=2**31 - 1)
    hidden: int = _option(64, "width of the embeddings and the head", least=1, most=4096)
    rounds: int = _option(4, "rounds of message passing", least=1, most=64)
    learning_rate: float = _option(3e-4, "of Adam; falls linearly", above=0)
    final_learning_rate: float = _option(5e-5, "where it falls to", least=0)
    entropy: float = _option(0.002, "weight of the entropy bonus; falls linearly", least=0)
    final_entropy: float = _option(0.0002, "where it falls to", least=0)
    n_envs: int = _option(128, "episodes walked at once", least=1, most=65_536)
    repeats: int = _option(16, "episodes of one graph walked side by side; fewer graphs to encode", least=1)
    n_steps: int = _option(768, "decisions of each episode between two updates", least=2)
    batch_size: int = _option(8192, "decisions of a minibatch", least=2)
    epochs: int = _option(3, "passes over the decisions of an update", least=1)
    advantage: str = _option(
        "op",
        "what a decision is compared with: others on the same op, on the same graph, or in the same batch",
        choices=ADVANTAGES,
    )
    gae_lambda: float = _option(1.0, "of generalised advantage estimation", least=0, most=1)
    clip: float = _option(0.2, "clip range of PPO", above=0)
    value_weight: float = _option(0.5, "weight of the value loss", least=0)
    max_grad_norm: float = _option(0.5, "gradients are clipped to this norm", above=0)
    holdout: float = _option(0.25, "share of each family's graphs never trained on", least=0, most=0.5)
    validation: float = _option(
        0.125, "share never trained on that helps to choose the best policy", least=0, most=0.5
    )
    ema_decay: float = _option(
        0.95,
        "share of the averaged weights that an update keeps; the averaged policy is evaluated",
        least=0,
        most=0.9999,
    )
    eval_every: int = _option(15, "updates between two evaluations", least=1)
    checkpoint_every: int = _option(10, "updates between two checkpoints", least=1)
    threads: int = _option(2, "threads that share the work of a rollout and of an update", least=1, most=1024)
    device: str = _option("cpu", "torch device of the network")

    def __post_init__(self) -> None:
        for item in fields(self):
            _check(item, getattr(self, item.name))

    def to_json(self) -> dict[str, Any]:
        """All fields, tuples as lists."""
        return {
            key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()
        }


def config_from_json(values: object, where: str, base: TrainConfig | None = None) -> TrainConfig:
    """Read a configuration from JSON values, over the fields of `base`.

    Args:
        values: a mapping of field names; single strings stand for lists of one.
        where: what to call the source in messages.

    Raises:
        ConfigError: not an object, an unknown key, or a bad value.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where}: holds {type(values).__name__}, not an object of settings")
    known = field_types()
    for key in values:
        if key not in known:
            raise ConfigError(f"{where}: unknown key '{key}'; use {', '.join(known)}")
    try:
        cleaned: dict[str, Any] = {key: _clean(value, known[key]) for key, value in values.items()}
        return replace(base or TrainConfig(), **cleaned)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def field_types() -> dict[str, Any]:
    """Type of each field, by name."""
    hints = get_type_hints(TrainConfig)
    return {item.name: hints[item.name] for item in fields(TrainConfig)}


def _clean(value: object, kind: Any) -> object:
    if get_origin(kind) is tuple:
        return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return value


def _check(item: Field[Any], value: object) -> None:
    kind = field_types()[item.name]
    if not _is_a(value, kind):
        raise ConfigError(f"{item.name} is {value!r}; use {_describe(kind)}")
    rules = item.metadata
    if rules.get("some") and not value:
        raise ConfigError(f"{item.name} is empty; give at least one")
    if value in rules.get("planned", ()):
        raise ConfigError(
            f"{item.name} '{value}' is not built in this version; use {', '.join(rules['choices'])}"
        )
    if "choices" in rules and value not in rules["choices"]:
        raise ConfigError(f"{item.name} is '{value}'; use {' or '.join(rules['choices'])}")
    if isinstance(value, int | float):
        _check_range(item.name, value, rules)


def _check_range(name: str, value: float, rules: Mapping[str, Any]) -> None:
    if not math.isfinite(value):
        raise ConfigError(f"{name} is {value}; use a finite number")
    if "least" in rules and value < rules["least"]:
        raise ConfigError(f"{name} is {value}; use at least {rules['least']}")
    if "above" in rules and value <= rules["above"]:
        raise ConfigError(f"{name} is {value}; use more than {rules['above']}")
    if "most" in rules and value > rules["most"]:
        raise ConfigError(f"{name} is {value}; use at most {rules['most']}")


def _is_a(value: object, kind: Any) -> bool:
    if get_origin(kind) is tuple:
        inner = get_args(kind)[0]
        return isinstance(value, tuple) and all(_is_a(part, inner) for part in value)
    return isinstance(value, int | float if kind is float else kind) and not isinstance(value, bool)


def _describe(kind: Any) -> str:
    if get_origin(kind) is tuple:
        return "a list of strings"
    return {str: "a string", int: "a whole number", float: "a number"}[kind]
