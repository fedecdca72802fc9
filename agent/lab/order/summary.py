"""Rows of the page from those of trainings: `... summary SHARED.csv CREDIT.csv OUT.csv.gz`.

Parts: `weights` (one set of weights for all orders, and sets of their own, on the same graphs), `credit`, and
`summary`: an analysis of variance, tests, and shares of a loss.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from agent.lab.order.trainings import FAMILIES, FOUR, SEEDS, TEN
from agent.lab.pivot import Row, axis, grouped, read_table, write_rows
from agent.lab.questions import RESULTS, kendall
from graphs.system.array_types import FloatArray

ARMS = {
    "one set, consumers": "one set of weights, equal features",
    "one set, rollout": "one set of weights, all features",
    "prefix": "weights of its own, equal features",
    "rollout": "weights of its own, all features",
}
LEARNERS = {
    "end, 1": "reward at the end, lambda 1",
    "prefix, 1": "reward by the partial step, lambda 1",
    "end, 0.95": "reward at the end, lambda 0.95",
    "prefix, 0.95": "reward by the partial step, lambda 0.95",
    "list schedule, 0.95": "reward by a completed step, lambda 0.95",
    "moves": "costs of single moves",
}
EIGHT = tuple(order for order in TEN if order not in ("lexico-topo", "cost"))


def rows_of(part: str, rows: Sequence[Row], names: Mapping[str, str]) -> list[dict[str, Any]]:
    """Returns the rows of some arms, each with the step over that in `topo`; in `topo`, over one device."""
    in_topo = (row for row in rows if row["order"] == "topo")
    topo = {(row["arm"], row["seed"], row["graph"]): row["ratio_to_single"] for row in in_topo}
    found = []
    for arm, order in itertools.product(names, TEN):
        own = [row for row in rows if row["arm"] == arm and row["order"] == order]
        for row in sorted(own, key=lambda row: (row["seed"], FAMILIES.index(row["family"]), row["graph"])):
            base = topo[arm, row["seed"], row["graph"]] if order != "topo" else 1.0
            ratio = row["ratio_to_single"] / base
            found.append(
                {
                    "part": part,
                    "arm": names[arm],
                    **{name: row[name] for name in ("family", "order", "seed", "graph")},
                    "ratio_to_single": f"{row['ratio_to_single']:.5f}",
                    "over_base": f"{ratio:.5f}",
                    **{name: row[name] for name in ("decisions", "cpu_s")},
                    "what": "",
                    "value": "",
                }
            )
    return found


def cube(rows: Sequence[Row]) -> tuple[list[str], FloatArray]:
    """Returns the orders, and logarithms of steps over one device, (families, graphs, orders, trainings)."""
    seeds, graphs, orders = (axis(row[name] for row in rows) for name in ("seed", "graph", "order"))
    logs = {(r["graph"], r["order"], r["seed"]): np.log(float(r["ratio_to_single"])) for r in rows}
    flat = np.array([[[logs[g, o, s] for s in seeds] for o in orders] for g in graphs])
    n_families = len({row["family"] for row in rows})
    return orders, flat.reshape(n_families, -1, len(orders), len(seeds))


def shares(logs: FloatArray) -> dict[str, float]:
    """Returns the share of the variance of each effect; they sum to 1."""

    def of(*axes: int) -> float:
        return float(logs.mean(axis=tuple(each for each in range(4) if each not in axes)).var())

    family, graph, order, training = of(0), of(0, 1) - of(0), of(2), of(3)
    by_family = of(0, 2) - family - order
    by_graph = of(0, 1, 2) - of(0, 1) - order - by_family
    of_training = of(2, 3) - order - training
    parts = {
        "family": family,
        "graph": graph,
        "order": order,
        "order x family": by_family,
        "order x graph": by_graph,
        "training": training,
        "training x order": of_training,
    }
    parts["training x graph and the rest"] = of(0, 1, 2, 3) - sum(parts.values())
    return {name: value / of(0, 1, 2, 3) for name, value in parts.items()}


def holm(p_values: Sequence[float]) -> list[float]:
    """Corrects p values for their number (Holm 1979)."""
    n, corrected, least = len(p_values), [0.0] * len(p_values), 0.0
    for rank, at in enumerate(np.argsort(p_values).tolist()):
        least = max(least, min((n - rank) * p_values[at], 1.0))
        corrected[at] = least
    return corrected


def of_weights(rows: Sequence[Row]) -> Iterator[tuple[str, float]]:
    """Yields names and numbers of one arm."""
    orders, logs = cube(rows)
    found = shares(logs)
    yield from ((f"variance, {name}", share) for name, share in found.items())
    left = 1 - found["family"] - found["graph"]
    yield from ((f"left by graphs, {name}", found[name] / left) for name in [*found][2:])
    by_graph = logs.mean(axis=3).reshape(-1, len(orders))
    pairs = list(itertools.combinations(range(len(orders)), 2))
    p_values = holm([float(stats.wilcoxon(by_graph[:, a] - by_graph[:, b]).pvalue) for a, b in pairs])
    yield "Friedman p", float(stats.friedmanchisquare(*by_graph.T).pvalue)
    yield from ((f"p, {orders[b]}", p) for (a, b), p in zip(pairs, p_values, strict=True) if a == 0)
    means = logs.mean(axis=(0, 1))[[orders.index(order) for order in EIGHT]]
    yield "spread of eight orders", float(means.mean(axis=1).std(ddof=1))
    yield "spread of trainings of an order", float(np.sqrt(means.var(axis=1, ddof=1).mean()))
    differences = (means - means[0])[1:]
    yield "spread of trainings of a difference", float(np.sqrt(differences.var(axis=1, ddof=1).mean()))


def of_credit(rows: Sequence[Row]) -> Iterator[tuple[str, str, float]]:
    """Yields learner, name and number: the share of the loss of an order that its learner does not have."""
    of = grouped(rows, lambda row: (row["arm"], row["order"], row["seed"]))
    logs = {key: np.log([float(row["ratio_to_single"]) for row in own]) for key, own in of.items()}
    first = LEARNERS["end, 1"]
    for arm in axis(row["arm"] for row in rows):
        for orders in (("topo",), *((order,) for order in FOUR[1:]), FOUR[1::2]):
            needed = [(name, order) for name in (arm, first) for order in ("topo", *orders)]
            seeds = [seed for seed in SEEDS if all((*key, seed) in logs for key in needed)]
            one, other = (
                np.array([[logs[name, order, seed] for seed in seeds] for order in orders])
                for name in (arm, first)
            )
            said = " and ".join(orders)
            yield arm, f"over reward at the end, {said}", float(np.exp((one - other).mean()))
            if orders != ("topo",):
                yield from (
                    (arm, f"{name}, {said}", number)
                    for name, number in gone(
                        *(
                            each - np.array([logs[name, "topo", seed] for seed in seeds])
                            for each, name in ((one, arm), (other, first))
                        )
                    )
                )


def gone(loss: FloatArray, base: FloatArray) -> Iterator[tuple[str, float]]:
    """Yields the share of a loss that another one lacks, and a 95 % interval over trainings and graphs.

    Args:
        loss, base: logarithms of the step over that in `topo`, (orders, trainings, graphs).
    """
    rng = np.random.default_rng(0)
    _, n_seeds, n_graphs = loss.shape
    drawn = []
    for _ in range(2_000):
        seeds, graphs = rng.integers(n_seeds, size=n_seeds), rng.integers(n_graphs, size=n_graphs)
        one, other = (each[:, seeds][:, :, graphs].mean() for each in (loss, base))
        drawn.append(1 - one / other)
    low, high = np.quantile(drawn, [0.025, 0.975])
    yield "gone", float(1 - loss.mean() / base.mean())
    yield "gone at least", float(low)
    yield "gone at most", float(high)
    if n_seeds > 1:
        yield "spread of trainings of the loss", float(loss.mean(axis=(0, 2)).std(ddof=1))


def main(shared: Path, credit: Path, out: Path) -> None:
    """Writes the rows."""
    new, old = read_table(shared), read_table(RESULTS / "orders.csv.gz")
    graphs = {row["graph"] for row in new}
    old = [row for row in old if row["arm"] in ARMS and row["graph"] in graphs and row["seed"] < 3]
    weights = rows_of("weights", [*new, *old], ARMS)
    told = rows_of("credit", read_table(credit), LEARNERS)
    found: list[tuple[str, str, float]] = []
    of_arm = grouped(weights, lambda row: row["arm"])
    for arm, rows in of_arm.items():
        found += [(arm, *each) for each in of_weights(rows)]
    means = {arm: cube(rows)[1].mean(axis=(0, 1, 3)) for arm, rows in of_arm.items()}
    ranked = {arm: dict(zip(cube(rows)[0], means[arm], strict=True)) for arm, rows in of_arm.items()}
    for one, other in itertools.combinations(ranked, 2):
        both = {order: ranked[one][order] for order in EIGHT}
        found.append((one, f"ranked as {other}", kendall(both, ranked[other])))
    found += of_credit(told)
    empty = dict.fromkeys(told[0], "")
    summary = [
        {**empty, "part": "summary", "arm": arm, "what": what, "value": round(float(value), 6)}
        for arm, what, value in found
    ]
    write_rows(out, [*weights, *told, *summary])
    for arm, what, value in found:
        print(f"{arm:45} {what:45} {value:.4f}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
