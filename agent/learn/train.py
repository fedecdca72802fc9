"""The one training function: a configuration and a context in, a trained policy out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import KVWriter, Logger

from agent.learn.callbacks import ASKED, AverageWeights, Checkpoints, StopWhen, TimeLimit
from agent.learn.checkpoints import Checkpoint, CheckpointFolder, restoring
from agent.learn.config import DECISIVE, TrainConfig
from agent.learn.evaluation import CompareWithSearch, DrawPlacement, KeepPolicy
from agent.learn.inputs import Inputs, read_inputs
from agent.learn.metrics import HELD_OUT, SCORE, VALIDATION
from agent.learn.ppo import PlacementPPO, settings_of
from agent.learn.problems import training_problems, validation_problems
from agent.learn.references import some
from agent.learn.workers import FIRST, WorkerGroup
from agent.policy.mdp_config import MdpConfig
from agent.policy.network import PlacementNetwork
from agent.policy.policy import Policy, torch_threads
from agent.policy.serialization import PolicyCard, describe_seen
from agent.policy.shape import current_shape
from agent.policy.starts import episode_arguments
from envs.placement.generator import Rounds
from envs.placement.reward import Measured, Reward, simulated
from envs.placement.vec_env import PlacementVecEnv
from envs.problem import Problem
from envs.runtime.runnable_model import RunnableModel
from graphs.dataset import Split
from graphs.system.performance import tune_malloc

REFERENCES = "references.json"
"""File of a run that keeps what annealing finds."""
FEW, MOST = 16, 128
"""Graphs of each use that are placed at most, drawn at random, in trainings of two minutes and of 16 or more;
more would take the time to learn."""
COMPARING = 0.2
"""Fraction of a training's time that comparisons before the regular ones may take together."""
GAINS = {"score": SCORE, "validation": VALIDATION, "held_out": HELD_OUT}
"""Greedy step times over one device, by their names in `Result.gains`."""


class Context(Protocol):
    """Interface to the place that a training runs in; `train` knows nothing of processes or clusters.

    Attributes:
        device: torch device of the network.
        folder: takes the policy, and what is measured.
        graphs: graphs to train, validate and report on.
        checkpoints: folder to resume from and to save to.
        runnable: model to run, if measured step times are learned from.
        group: workers that train together; `SOLO` for one process.
        outputs: outputs of the logger; those of the first worker get all numbers.
        callbacks: further ones, after those that compare and keep.
    """

    seed: int
    device: str
    folder: Path
    graphs: Split
    checkpoints: CheckpointFolder
    runnable: RunnableModel | None
    group: WorkerGroup
    outputs: Sequence[KVWriter]
    callbacks: Sequence[BaseCallback]

    def announce(self, activity: str, share: float) -> None:
        """Shows an activity beside training, and the share of it that is done."""

    def should_stop(self) -> bool:
        """Says whether to stop after this update, leaving a checkpoint; all workers stop if one does."""


@dataclass(frozen=True)
class Result:
    """The result of a training.

    Attributes:
        timesteps, updates: decisions and updates made.
        wall_s: seconds, those before interruptions included.
        best_score: geometric mean of the greedy step time over that of one device, on the graphs for training
            and validation and the clusters as they are, by the policy that was kept. Infinite in a worker
            that is not the first.
        best_timesteps: decisions until that policy was found; 0 = at the start.
        finished: it used up its decisions or its time, rather than being stopped.
        gains: `GAINS` before and after training, each greedy.
        cut_short: decisions made of those asked for, where time ended it; else empty.
        failure: reason for its end, if it diverged; one line.
    """

    timesteps: int
    updates: int
    wall_s: float
    best_score: float
    best_timesteps: int
    finished: bool
    gains: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    cut_short: str = ""
    failure: str = ""


class DivergedError(RuntimeError):
    """A training whose losses, gradients, weights or scores are not finite any more; one line says where.

    What was saved before is kept: the best policy and the last checkpoint.
    """

    def __init__(self, result: Result) -> None:
        super().__init__(result.failure)
        self.result = result


def train(config: TrainConfig, context: Context, inputs: Inputs | None = None) -> Result:
    """Trains a policy; keeps the one that does best on the graphs for training and validation.

    Goes on from the context's newest checkpoint where there is one. Writes the policy into the context's
    folder whenever a better one is found.

    Args:
        inputs: result of `read_inputs`, if it was called before.

    Raises:
        ValueError: what `read_inputs` raises, or a file of the run that cannot be read or is not of it.
        DivergedError: a number that the policy learns from is not finite; none is kept.
    """
    inputs = inputs or read_inputs(config, context.graphs, context.runnable)
    tune_malloc()
    timer, group = inputs.step_timer, context.group
    reward: Reward = Measured(timer) if timer else simulated
    with torch_threads(1), timer.storing_in(context.folder) if timer else nullcontext():
        problems = training_problems(context.graphs.train, config, context.seed)
        saved = context.checkpoints.latest(lambda line: context.announce(line, 0.0))
        model = _make_model(config, context, inputs, problems, reward, saved)
        average, graphs = AverageWeights(config.ema_decay), context.graphs
        n_compared = _n_compared(config, saved)
        compare = CompareWithSearch(  # on randomized clusters a few graphs out of memory would decide
            some(validation_problems(graphs.held_out, config), n_compared),
            validation=some(validation_problems(graphs.validation, config), n_compared),
            trained_on=some(validation_problems(graphs.train, config) or problems, n_compared),
            every=config.eval_every,
            order=config.order,
            average=average,
            reward=reward,
            most_s=COMPARING * config.limit_s,
            references=context.folder / REFERENCES,
            announce=context.announce,
        )
        limit = TimeLimit(config.limit_s, group, lambda: compare.paused_s)
        keep = KeepPolicy(compare, context.folder, _card(config, context, inputs, model))
        run = {**_identity(config, problems), "n_compared": n_compared}
        callbacks = [
            limit,
            StopWhen(context.should_stop, group),
            average,
            *([compare, keep, DrawPlacement(compare)] if group.rank == FIRST else ()),
            *context.callbacks,
            Checkpoints(context.checkpoints, config.checkpoint_every, run=run, group=group),
        ]
        left = max(config.timesteps - model.num_timesteps, 0)
        failure, cause = "", None
        try:
            model.learn(left, callbacks, reset_num_timesteps=False)
        except FloatingPointError as error:
            failure, cause = _said(error, config, model.updates), error
        result = _result(config, model, limit, compare, keep, failure)
    if failure:
        raise DivergedError(result) from cause
    return result


def _make_model(
    config: TrainConfig,
    context: Context,
    inputs: Inputs,
    problems: Sequence[Problem],
    reward: Reward,
    saved: Checkpoint | None,
) -> PlacementPPO:
    """Makes the algorithm that a configuration describes, or continues the one of a checkpoint."""
    size = context.group.size
    mdp = MdpConfig.from_settings(config.to_json())
    env = PlacementVecEnv(
        problems,
        config.n_envs // size,
        generator=Rounds(repeats=config.repeats),
        reward=reward,
        orders=config.order,
        threads=config.threads,
        **episode_arguments(mdp),
    )
    settings = settings_of(config) | {
        "batch_size": -(-config.batch_size // size),
        "learning_rate": _linear(config.learning_rate, config.final_learning_rate),
        "ent_coef": _linear(config.entropy, config.final_entropy),
        "advantage": config.advantage,
        "share": config.share,
        "seed": context.seed,
        "device": context.device,
        "group": context.group,
    }
    kwargs: dict[str, Any] = {"threads": config.threads, "freeze_encoder": config.freeze_encoder}
    if saved is not None and saved.path is not None:
        model = PlacementPPO.load(saved.path, env, policy_kwargs=kwargs, **settings)
    else:
        shape = current_shape(config.encoder, config.hidden, config.rounds, config.feature_set)
        kwargs["make_policy"] = lambda: Policy(
            inputs.policy.network if inputs.policy is not None else PlacementNetwork(shape), mdp
        )
        model = PlacementPPO("PlacementPolicy", env, policy_kwargs=kwargs, **settings)
    model.set_logger(Logger(folder=None, output_formats=list(context.outputs)))
    return model


def _linear(first: float, last: float) -> Callable[[float], float]:
    """Makes a schedule that goes from one value to another while the remaining progress goes from 1 to 0."""
    return lambda remaining: last + (first - last) * remaining


def _n_compared(config: TrainConfig, saved: Checkpoint | None) -> int:
    """Returns the most graphs of each use that are compared, the same for all of a run."""
    if saved is None:
        return int(min(max(config.limit_s * FEW / 120, FEW), MOST))
    with restoring(saved):
        return int(saved.state["callbacks"]["Checkpoints"]["n_compared"])


def _card(config: TrainConfig, context: Context, inputs: Inputs, model: PlacementPPO) -> PolicyCard:
    shown = describe_seen((*context.graphs.train, *context.graphs.validation))
    seen = {entry["sha256"]: entry for entry in (*inputs.seen, *shown)}
    return PolicyCard(model.policy.placer.network.shape, tuple(seen.values()), config.to_json())


def _identity(config: TrainConfig, problems: Sequence[Problem]) -> dict[str, Any]:
    """Returns the settings and problems that stay the same within a run, as JSON."""
    settings = config.to_json()
    names = [f"{problem.graph.name} on {problem.cluster.name}" for problem in problems]
    return {key: settings[key] for key in DECISIVE} | {"problems": names}


def _said(error: FloatingPointError, config: TrainConfig, updates: int) -> str:
    """Says when a training diverged and what to try."""
    rates = ("learning_rate", "final_learning_rate")
    rate, name = max((float(getattr(config, name)), name) for name in rates)
    return (
        f"training diverged after {updates:,} updates: {error}; what was saved before is "
        f"kept; train under another name with a lower --{name.replace('_', '-')} (now {rate:g})"
    )


def _result(
    config: TrainConfig,
    model: PlacementPPO,
    limit: TimeLimit,
    compare: CompareWithSearch,
    keep: KeepPolicy,
    failure: str,
) -> Result:
    first, last, timesteps = compare.first, compare.last, model.num_timesteps
    is_short = timesteps < config.timesteps and model.ending != ASKED
    return Result(
        timesteps=timesteps,
        updates=model.updates,
        wall_s=limit.wall_s,
        best_score=keep.best_score,
        best_timesteps=keep.best_decisions,
        finished=not failure and model.ending != ASKED,
        gains={use: (first[name], last[name]) for use, name in GAINS.items() if name in last},
        cut_short=f"{timesteps:,} of {config.timesteps:,} decisions" if is_short and not failure else "",
        failure=failure,
    )
