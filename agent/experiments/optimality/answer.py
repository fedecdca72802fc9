"""The distance of placers from the optimum, and of the lower bound, on graphs that `exact` closes.

The graphs are those of the sealed set. One draw of each family is coarsened to few placement units; its
coarse ops count as single ops. Graphs are placed whole as well, by the finest of module, block and layer
whose placements can all be tried; all their ops are timed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from agent.evaluation.policies import EvaluatedPolicy, open_policy
from agent.evaluation.results import Trial
from agent.evaluation.spec import EvaluationSpec
from agent.experiments.equal_time.sealed import sealed_graphs
from agent.experiments.experiment import ExperimentError
from agent.experiments.launcher import evaluated
from agent.experiments.optimality.problems import SETTINGS, Setting
from agent.experiments.optimality.rows import OptimalityRow, rows_of
from agent.placers.base import Budget
from envs.cluster.presets import get_cluster
from graphs.op_graph import OpGraph

PLACERS = (
    *("heft", "m-etf", "rollout", "local-search", "annealing", "refine", "rollout-beam", "rollout-refine"),
    *("policy", "policy-beam", "policy-refine"),
)


def optimality_rows(
    folder: Path,
    clusters: Sequence[str],
    seconds: float,
    solver_seconds: float,
    budgets: Sequence[int],
    known: int,
    new: int,
) -> Iterator[list[OptimalityRow]]:
    """Compares placers with the optima of all problems that are closed.

    Args:
        folder: takes a folder for each problem setting.
        clusters: of the settings; none for all.
        seconds, solver_seconds: of a proof where all placements are tried, and of one by the solver.
        budgets: evaluations of the placers.
        known, new: draws to place whole, of each family of the benchmark set and of each other.

    Raises:
        InputError: no problem has a cluster.
    """
    if other := set(clusters) - {setting.cluster for setting in SETTINGS}:
        raise ExperimentError(
            f"no problems on {min(other)}; use {', '.join({s.cluster: s for s in SETTINGS})}"
        )
    policy = open_policy("pretrained", [])
    how_seen = policy.stored.card.how_seen

    def sealed(n_known: int, n_new: int) -> list[OpGraph]:
        return sealed_graphs(Path("runs") / "sealed", n_known=n_known, n_new=n_new, how_seen=how_seen)

    first, whole = sealed(1, 1), sealed(known, new)
    found: list[OptimalityRow] = []
    for setting in (each for each in SETTINGS if not clusters or each.cluster in clusters):
        if graphs := setting.graphs(first if setting.n_units else whole):
            limit_s = seconds if setting.can_be_tried else solver_seconds
            found += _setting_rows(folder / setting.folder, setting, graphs, policy, limit_s, budgets)
    yield found


def _setting_rows(
    folder: Path,
    setting: Setting,
    graphs: Sequence[OpGraph],
    policy: EvaluatedPolicy,
    seconds: float,
    budgets: Sequence[int],
) -> Iterator[OptimalityRow]:
    """Makes the evaluations of a setting that are not made yet."""

    def trials(name: str, placers: tuple[str, ...], budget: Budget) -> Sequence[Trial]:
        spec = EvaluationSpec(
            graphs=tuple(graphs),
            clusters=(get_cluster(setting.cluster),),
            placers=placers,
            budget=budget,
            policy=policy,
            granularity=setting.granularity,
        )
        return evaluated(spec, folder / name)

    proofs = trials(f"exact-{seconds:g}-s", ("exact",), Budget(None, seconds))
    by_name = {graph.name: graph for graph in graphs}
    for budget in budgets:
        yield from rows_of(setting, by_name, proofs, trials(f"{budget}", PLACERS, Budget(budget)), budget)
