"""What the goldens ask of the code: where a call changes, only this file does, and no answer may."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import astuple, dataclass, field, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from agent.commands import evaluate
from agent.lab import __main__ as command
from agent.lab.questions import EXPERIMENTS, RESULTS
from agent.learn.callbacks import UpdateCallback
from agent.learn.train import train
from agent.placers.base import PIPELINE_PLACERS, PLACERS, Budget, names_of
from agent.policy.policy import Policy
from agent.policy.serialization import load_policy
from envs.cluster.host import NONE, with_host
from envs.cluster.presets import get_cluster
from envs.objective import PIPELINE, STEP
from envs.pipeline.objective import PipelineObjective
from envs.pipeline.pipeline import Pipeline
from envs.pipeline.stages import stages_of
from envs.placement.episodes import EpisodeBatch, EpisodeSettings
from envs.problem import Problem
from envs.simulator.simulate import simulate_problem
from graphs.dataset import Split, load_family
from graphs.granularity import with_granularity
from graphs.op_graph import OpGraph
from tests.agent.learn.train_cases import SMALL, MemoryContext

STEP_PLACERS, PIPELINED_PLACERS = names_of(STEP), names_of(PIPELINE)

shipped_policy = cache(lambda: load_policy("pretrained"))
graphs_of = cache(load_family)


def graph_of(family: str, number: int, granularity: str) -> OpGraph:
    """A graph of the benchmark set."""
    return with_granularity(graphs_of(family)[number], granularity)


def problem_of(graph: OpGraph, cluster: str) -> Problem:
    """A graph on a cluster: a preset, after `pair` with links of pairs, after `tight` with little memory."""
    *rules, name = cluster.split()
    preset = with_host(get_cluster(name), NONE)
    problem = Problem(graph, replace(preset, sharing="pair") if "pair" in rules else preset)
    if "tight" not in rules:
        return problem
    alone = simulate_problem(problem, np.zeros(graph.n_ops, dtype=np.int64)).peak_bytes.max()
    memory = max(1.4 * alone / problem.n_devices, 1.1 * problem.footprint_bytes.max())
    devices = tuple(replace(device, memory_bytes=memory) for device in problem.cluster.devices)
    return Problem(graph, replace(problem.cluster, devices=devices))


def is_random(name: str, order: str) -> bool:
    """Whether another seed may give another placement of a step."""
    return PLACERS[name].draws(order if PLACERS[name].is_learned else "")


def place(name: str, problem: Problem, order: str, evaluations: int, seed: int) -> tuple[NDArray[Any], float]:
    """Device of each op, and the step time; learned placers may also score the single devices."""
    placer, budget = PLACERS[name], Budget(evaluations)
    if placer.is_learned:
        placer, budget = placer.with_policy(shipped_policy(), order), Budget(evaluations + problem.n_devices)
    found = placer.place(problem, budget, np.random.default_rng(seed))
    return found.placement.device_of, found.step_time.total_s


def pipeline_is_random(name: str) -> bool:
    """Whether another seed may give another pipeline."""
    return PIPELINE_PLACERS[name].uses_rng


def place_pipeline(
    name: str, problem: Problem, schedule: str, microbatches: int, evaluations: int, seed: int
) -> tuple[list[Any], float]:
    """A plan without replicas (devices, stages, stages that recompute, and nothing), and the step time."""
    objective = PipelineObjective(problem, Pipeline(schedule, microbatches))
    found = PIPELINE_PLACERS[name].place(objective, Budget(evaluations), np.random.default_rng(seed))
    stages = stages_of(problem, found.placement)
    plan = [stages.device_of, stages.stage_of, stages.devices, sorted(stages.recomputed), ()]
    return plan, found.step_time.total_s


@dataclass
class Episode:
    """What an episode shows before each decision, its rewards, and the info of its end."""

    observations: list[dict[str, NDArray[Any]]] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    info: tuple[Any, ...] = ()
    step_time_s: float = 0.0
    episode_return: float = 0.0


def play(problems: Sequence[Problem], cases: Sequence[tuple[int, str]], **settings: Any) -> list[Episode]:
    """Plays episodes at random, each with a generator of its own, however many play at once.

    Args:
        cases: index of the problem and name of the order of each episode.
        settings: `mdp`, `mask` and `memory_penalty`.
    """
    batch = EpisodeBatch(problems, len(cases), EpisodeSettings([order for _, order in cases], **settings))
    draws = [np.random.default_rng([7, number]) for number in range(len(cases))]

    def begin(number: int) -> None:
        batch.begin(number, cases[number][0], number, np.random.default_rng(number))

    for number in range(len(cases)):
        begin(number)
    episodes = [Episode() for _ in cases]
    while not all(episode.info for episode in episodes):
        actions = np.array(
            [
                rng.choice(np.flatnonzero(mask))
                for rng, mask in zip(draws, batch.observation.mask, strict=True)
            ]
        )
        playing = [number for number, episode in enumerate(episodes) if not episode.info]
        for number in playing:
            rows = {name: row[number].copy() for name, row in batch.observation._asdict().items()}
            episodes[number].observations.append(rows)
        rewards, done = batch.step(actions)
        for number in playing:
            episodes[number].rewards.append(float(rewards[number]))
        for number in np.flatnonzero(done).tolist():
            if number in playing:
                result, episode = batch.result(number), episodes[number]
                episode.info = astuple(result)
                episode.step_time_s, episode.episode_return = result.step_time_s, result.episode_return
            begin(number)
    return episodes


def scores(problem: Problem, observations: Sequence[Mapping[str, NDArray[Any]]]) -> list[NDArray[Any]]:
    """Logits and values that the shipped policy gives to observations of a problem."""
    policy: Policy = shipped_policy()
    policy.set_problems([problem])
    rows = {name: np.stack([each[name] for each in observations]) for name in observations[0]}
    obs = {name: torch.from_numpy(array.reshape(len(array), -1)) for name, array in rows.items()}
    with torch.no_grad():
        return [tensor.numpy() for tensor in policy.scores(obs)]


class KeepWeights(UpdateCallback):
    """Keeps the weights after each update."""

    weights: list[list[NDArray[Any]]]

    def _init_callback(self) -> None:
        self.weights = []

    def _on_update(self) -> None:
        if len(self.weights) < self.model.updates:
            tensors = self.model.policy.placer.network.state_dict()
            self.weights.append([tensors[name].numpy().copy() for name in sorted(tensors)])


def updates(mdp: str, train_on: Sequence[OpGraph]) -> Iterator[tuple[list[NDArray[Any]], dict[str, float]]]:
    """Weights and metrics after three updates."""
    first, second, third, last = train_on
    config = replace(SMALL, mdp=mdp, eval_every=1, checkpoint_every=1, order=("topo", "b-level"))
    config = replace(config, timesteps=3 * SMALL.n_envs * SMALL.n_steps, start="single", passes=1)
    with TemporaryDirectory() as folder:
        keep = KeepWeights()
        context = MemoryContext(Path(folder), seed=3, callbacks=(keep,))
        context.graphs = Split((first, second), (third,), (last,))
        train(replace(config, cluster=("4xv100", "gpu+cpu")), context)
        yield from zip(keep.weights, context.rows[1:], strict=True)


def evaluation_files(words: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """Runs `evaluate.py` on the model, and yields the files that it writes."""
    with TemporaryDirectory() as folder, chdir(folder), redirect_stdout(io.StringIO()):
        arguments = ["--model", "tests.golden.model:small_model", "--jobs", "1", "--out", "out", *words]
        with redirect_stderr(errors := io.StringIO()):
            assert evaluate.main(arguments) == 0, errors.getvalue()
        for path in sorted(Path("out").rglob("*")):
            if path.is_file():
                yield str(path.relative_to("out")), path.read_bytes()


def printed_tables() -> Iterator[tuple[str, str]]:
    """What the command of each page of results prints from the page's rows."""
    for name, experiment in EXPERIMENTS.items():
        if (RESULTS / experiment.rows[0]).exists():
            with redirect_stdout(printed := io.StringIO()):
                assert command.main([name, "--only", "tables"]) == 0
            yield name, printed.getvalue()
