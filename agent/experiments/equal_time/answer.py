"""Placers in equal time on the sealed test set.

Each budget is an evaluation of its own. The baseline is `refine`, the best placer that learned nothing.
Nothing else should run on the machine meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from agent.evaluation.policies import open_policy
from agent.evaluation.spec import EvaluationSpec
from agent.experiments.equal_time.paired import Paired, pair
from agent.experiments.equal_time.sealed import STANDARD, sealed_graphs
from agent.experiments.launcher import evaluated
from agent.experiments.rows import axis, markdown_table, read_rows
from agent.placers.base import Budget
from envs.cluster.presets import get_cluster

BASELINE = "refine"
SHORTEST_S = 0.1
"""The least budget in which `refine` scored all heuristics first, when the rows were made."""


def equal_time_rows(
    folder: Path,
    searches: Sequence[str],
    stopping: Sequence[str],
    families: Sequence[str],
    cluster: str,
    seconds: Sequence[float],
    seeds: int,
    known: int,
    new: int,
    first_seed: int,
) -> Iterator[list[Paired]]:
    """Compares placers with the baseline after each budget.

    Args:
        folder: takes a folder for each evaluation.
        searches, stopping: as `equal_time_tables` takes them.
        families: of the sealed set; none for all but the large ones.
        seconds: budgets.
        known, new, first_seed: as `sealed_graphs` takes them.
    """
    policy = open_policy("pretrained", [])
    graphs = sealed_graphs(
        n_known=known,
        n_new=new,
        how_seen=policy.stored.card.how_seen,
        families=families or STANDARD,
        first_seed=first_seed,
    )
    found: list[Paired] = []
    for budget in seconds:
        spec = EvaluationSpec(
            graphs=tuple(graphs),
            clusters=(get_cluster(cluster),),
            placers=(BASELINE, *stopping, *searches),
            seeds=seeds,
            budget=Budget(None, budget),
            policy=policy,
        )
        found += pair(evaluated(spec, folder / f"{budget:g}-s"), BASELINE, budget)
    yield found


def equal_time_tables(file: Path, searches: Sequence[str], stopping: Sequence[str]) -> Iterator[str]:
    """Yields placers over the baseline.

    Args:
        searches: placers that use a whole budget.
        stopping: placers that stop by themselves.
    """
    rows = read_rows(file, Paired)
    yield budgets_table(rows, searches)
    if stopping:
        yield stopping_table(rows, stopping)


def budgets_table(rows: Sequence[Paired], placers: Sequence[str]) -> str:
    """Formats step times over the baseline's: a row per placer, a column per budget, and the graphs won."""
    budgets = [seconds for seconds in axis(row.seconds for row in rows) if seconds >= SHORTEST_S]
    body = []
    for placer in placers:
        own = {row.seconds: row for row in rows if row.placer == placer and row.seconds in budgets}
        if own:
            cells = [own[budget].cell if budget in own else "" for budget in budgets]
            last = own.get(budgets[-1])
            body.append([placer, *cells, f"{last.wins} : {last.losses}" if last else ""])
    heads = [f"{seconds:g} s" for seconds in budgets]
    return markdown_table([["placer", *heads, f"won : lost, {heads[-1]}"], *body])


def stopping_table(rows: Sequence[Paired], placers: Sequence[str]) -> str:
    """Formats placers that stop by themselves, over the baseline with the next budget above their time."""
    body = []
    for placer in placers:
        own = [row for row in rows if row.placer == placer and row.seconds >= SHORTEST_S]
        kept = [row for row in own if row.cpu_s <= row.seconds]
        for row in sorted(kept, key=lambda row: row.seconds)[:1]:
            body.append([placer, f"{row.cpu_s:.3f}", f"{row.to_single:.3f}", f"{row.seconds:g} s", row.cell])
    head = ["placer", "processor seconds, mean", "over one device", "budget of refine", "over refine"]
    return markdown_table([head, *body])
