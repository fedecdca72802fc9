"""Rows of trials on the sealed test set, by granularity, budget, placer and seed.

The set has draws of the families from seeds that nothing was tuned on, and families never used. It is for
reported comparisons alone. Constants are tuned on the graphs that a training keeps for validation, but for
those of `auto` that its module names.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path

import numpy as np

from agent.evaluation.run import evaluate
from agent.evaluation.spec import EvaluationSpec
from agent.instances.instance import DATA
from agent.lab.pivot import ExperimentError, Rows
from agent.placers.base import Budget
from agent.placing.request import check_placers
from agent.placing.trial_runner import open_policy
from agent.policy.serialization import NOT_SEEN, StoredPolicy, read_policy, save_policy, torch_classes
from envs.cluster.presets import get_cluster
from envs.problem import Problem
from graphs.dataset import capture_draw
from graphs.families import FAMILIES
from graphs.granularity import with_granularity
from graphs.io.graph_files import read_graphs
from graphs.op_graph import OpGraph
from graphs.system.errors import InputError
from graphs.system.progress import followed, progress_bars
from graphs.system.running_time import running_cpu_s

FIRST_SEED = 1000
"""Draws from here on are sealed."""
KEPT = DATA / "sealed.jsonl.gz"
"""Draws of families that nothing was tuned on, drawn by `equal_time/sealed_*.py` of b643ead."""
NEW = ("unet", "dit", "towers", "recommender", "conformer", "mixer")
LARGE = ("large-nmt", "large-ptb", "large-gpt", "large-llama", "large-moe", "large-t5", "large-ssm")
"""Graphs of thousands of ops."""
ALL = (*FAMILIES, *NEW, *LARGE)
NO_MODULES = "op without modules"
"""Granularity of graphs as other tools have them: by op, and no op says of which module it is."""
PRETRAINED, RANDOM = "pretrained", "random-weights"
"""The shipped policy, which placers have by default, and one of its shape that learned nothing."""
LARGE_OPS = 3_000
"""Ops from which on a graph counts as large."""
LONG_S, LONGEST_S = 0.3, 1.0
"""Large graphs are placed within the first budget and longer ones, others within the second and less."""


@dataclass(frozen=True)
class TrialRow:
    """A trial.

    Attributes:
        seconds: budget in processor seconds; None for none.
        budget: budget in evaluations; None for none.
        placer: name, and `-POLICY` if that is not the shipped one.
        step_s: simulated step time; infinite where the placement is infeasible.
        cpu_s: processor seconds that the placer took.
        evaluations: placements that it simulated.
        single_s: step time of the fastest single device.
        bound_s: lower bound on the step of every feasible placement.
    """

    graph: str
    family: str
    n_ops: int
    cluster: str
    granularity: str
    seconds: float | None
    budget: int | None
    placer: str
    seed: int
    step_s: float
    cpu_s: float
    evaluations: int
    single_s: float
    bound_s: float


@dataclass(frozen=True)
class SealedTrials:
    """Trials of placers on one draw of each family of the sealed set, by cluster, granularity and budget.

    Attributes:
        placers: names, or `NAME@POLICY`, where the policy is a run's folder or `random-weights`.
        clusters: names of presets.
        seconds: budgets in processor seconds.
        budget: further budgets, in evaluations.
        granularities: what one decision places, or `NO_MODULES`.
        families: families of the sealed set; none for all.
        seeds: number of seeds of each search.
        first_seed: seed of the draws, as `sealed_graphs` takes it.
        jobs: number of trials at the same time.
    """

    placers: tuple[str, ...]
    clusters: tuple[str, ...]
    seconds: tuple[float, ...]
    budget: tuple[int, ...] = ()
    granularities: tuple[str, ...] = ("op",)
    families: tuple[str, ...] = ()
    seeds: int = 1
    first_seed: int = 4000
    jobs: int = 1

    def rows(self, folder: Path) -> Rows:
        """Makes the rows; the folder keeps an evaluation of each cluster, granularity, budget and policy.

        Raises:
            ExperimentError: two policies have the same name, or some trials failed.
            InputError: a name is unknown.
        """
        clusters, by_policy = [get_cluster(name) for name in self.clusters], dict[str, list[str]]()
        for placer in self.placers:
            name, _, policy = placer.partition("@")
            by_policy.setdefault(policy, []).append(name)
        check_placers(itertools.chain(*by_policy.values()))
        if len({Path(path).name for path in by_policy}) < len(by_policy):
            raise ExperimentError(
                f"two of {', '.join(by_policy)} have the same name; rename the folder of one"
            )
        policies = {path: _opened(path, folder) for path in by_policy}
        seen = read_policy(PRETRAINED).card.how_seen
        graphs = sealed_graphs(self.families or ALL, first_seed=self.first_seed, how_seen=seen)
        timed = [Budget(None, seconds, running_cpu_s) for seconds in self.seconds]
        budgets = [*timed, *map(Budget, self.budget)]
        rows: list[TrialRow] = []
        for granularity, budget, cluster in itertools.product(self.granularities, budgets, clusters):
            placed = [_at(graph, granularity) for graph in graphs if _is_for(graph, budget)]
            feasible = tuple(graph for graph in placed if Problem(graph, cluster).is_feasible)
            for path, placers in by_policy.items() if feasible else ():
                spec = EvaluationSpec(
                    feasible,
                    (cluster,),
                    tuple(placers),
                    seeds=self.seeds,
                    budget=budget,
                    policy=policies[path],
                    granularity=granularity.partition(" ")[0],
                )
                rows += self._evaluated(folder, spec, granularity, f"-{Path(path).name}" if path else "")
        return [asdict(row) for row in rows]

    def _evaluated(self, folder: Path, spec: EvaluationSpec, granularity: str, policy: str) -> list[TrialRow]:
        """Makes the trials of an evaluation, or reads those that the folder has."""
        limit = f"{spec.budget.seconds:g}-s" if spec.budget.seconds else f"{spec.budget.evaluations}"
        name = f"{granularity.replace(' ', '-')}-{limit}-{spec.clusters[0].name}{policy}"
        with progress_bars() as report:
            result = evaluate(spec, folder / name, jobs=self.jobs, report=partial(report, name))
        if result.failures:
            raise ExperimentError(f"{folder / name}: {len(result.failures)} trials failed, see failures.csv")
        sizes = {graph.name: graph.n_ops for graph in spec.graphs}
        return [
            TrialRow(
                graph=trial.graph,
                family=trial.family,
                n_ops=sizes[trial.graph],
                cluster=trial.cluster,
                granularity=granularity,
                seconds=spec.budget.seconds,
                budget=spec.budget.evaluations,
                placer=trial.placer + policy,
                seed=trial.seed,
                step_s=trial.step_time_s if trial.feasible else np.inf,
                cpu_s=trial.cpu_s,
                evaluations=trial.evaluations,
                single_s=trial.single_s,
                bound_s=trial.lower_bound_s,
            )
            for trial in result.trials
        ]


def _at(graph: OpGraph, granularity: str) -> OpGraph:
    if granularity == NO_MODULES:
        return replace(graph, modules=("",) * graph.n_ops)
    return with_granularity(graph, granularity)


def _is_for(graph: OpGraph, budget: Budget) -> bool:
    if budget.seconds is None:
        return True
    return budget.seconds >= LONG_S if graph.n_ops >= LARGE_OPS else budget.seconds <= LONGEST_S


def _opened(path: str, folder: Path) -> StoredPolicy:
    """Opens the policy of a path, the shipped one for none; writes one of random weights into the folder."""
    if path == RANDOM:
        import torch

        make_network, _ = torch_classes()
        card = read_policy(PRETRAINED).card
        torch.manual_seed(0)
        (folder / RANDOM).mkdir(parents=True, exist_ok=True)
        save_policy(folder / RANDOM, make_network(card.shape), card)
        path = str(folder / RANDOM)
    return open_policy(path or PRETRAINED)


def sealed_graphs(
    families: Collection[str] = ALL,
    *,
    first_seed: int = FIRST_SEED,
    how_seen: Callable[[OpGraph], str] = lambda graph: NOT_SEEN,
) -> list[OpGraph]:
    """Captures a draw of each family of the benchmark set, and reads one of each of the others.

    Args:
        families: families to draw from.
        first_seed: seed of the draw, if it was not seen; a part of the set that was looked at is not to be
            used for a test of what was seen there.
        how_seen: says how much of a graph a policy saw; if it saw the structure, the next draw is taken.

    Raises:
        InputError: an unknown family, a seed that is not sealed, or no draw is kept.
    """
    if unknown := [family for family in families if family not in ALL]:
        raise InputError(f"no sealed family {', '.join(unknown)}; use some of {', '.join(ALL)}")
    if first_seed < FIRST_SEED:
        raise InputError(f"first seed {first_seed}: draws are sealed from {FIRST_SEED} on")

    def first_unseen(draws: Iterable[OpGraph]) -> OpGraph | None:
        return next((graph for graph in draws if how_seen(graph) == NOT_SEEN), None)

    graphs = []
    for family in followed([name for name in ALL if name in families], "sealed graphs"):
        if family in FAMILIES:
            graph = first_unseen(capture_draw(family, seed) for seed in itertools.count(first_seed))
        else:
            graph = first_unseen(
                graph for seed, graph in _kept() if graph.family == family and seed >= first_seed
            )
        if graph is None:
            raise InputError(
                f"{KEPT.name} holds no draw of {family} from seed {first_seed} on; give another first seed"
            )
        graphs.append(graph)
    return graphs


@cache
def _kept() -> list[tuple[int, OpGraph]]:
    """Reads the seeds and graphs that are kept."""
    return [(int(graph.name.rpartition("-")[2]), graph) for graph in read_graphs(KEPT)]
