"""The tables of settled questions on placers, on what they place and on the lower bound."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agent.evaluation.comparison.intervals import Interval, nested_interval
from agent.lab.rows import (
    RecordedRow,
    axis,
    grouped,
    markdown_table,
    mean_cell,
    number_of,
    pivot,
    read_table,
)

ALL = "all"
LEVEL = 1e-3
"""Step times that differ by less, as a share, are level."""
LEVELS = ("op", "module", "block", "layer")
SCARCE = ("gpu+cpu", "a100+v100")
"""Clusters with two kinds of devices, the faster of which gets little memory."""
SAME_STEP = 1e-6
"""Steps that differ by less, as a share, are equal."""
MOST_TRIED = 0.1
"""A budget of more than this share of the placements that differ finds the optimum by trying."""
TEN, HARM = 10, 0.01
"""Measurements after which adaptation is compared by world, and the loss to the best of K that is counted."""
N_SEALED = 15
"""Families of the sealed set when optima were measured."""


def module_moves_tables(file: Path) -> Iterator[str]:
    """Yields what moves of whole modules gain."""
    groups: dict[tuple[str, float], list[RecordedRow]] = defaultdict(list)
    for row in read_table(file):
        family = row["family"].removeprefix("large-")
        kind = "recurrent" if family == row["family"] else "large"
        for name in ("all", family):
            groups[f"{kind}, {name}", row["seconds"]].append(row)
    body = [[name, f"{seconds:g} s", *_moves_cells(own)] for (name, seconds), own in groups.items()]
    yield markdown_table([["graphs", "budget", "number", "with over without", "won : lost"], *body])


def _moves_cells(rows: Sequence[RecordedRow]) -> list[str]:
    families = [row["family"] for row in rows]
    logs = np.log([row["after_s"] / row["before_s"] for row in rows])
    ratio = nested_interval(zip(families, range(len(rows)), logs.tolist(), strict=True))
    cell = str(ratio) if len({*families}) > 1 else f"{ratio.mean:.3f}"
    return [str(len(rows)), cell, f"{(logs < -LEVEL).sum()} : {(logs > LEVEL).sum()}"]


def coarsening_tables(file: Path) -> Iterator[str]:
    """Yields what placing groups of ops costs, and how wrong the step time of the coarse graph is."""
    rows = [row for row in read_table(file) if row["graphs"]]
    groups = axis(row["groups"] for row in rows)
    for value, placers in {
        "found_over_op_by_op": ("heft", "m-etf"),
        "coarse_over_fine": ("heft", "m-etf", "random"),
    }.items():
        columns = {f"{placer}, {n}": (placer, n) for placer in placers for n in groups}
        yield markdown_table(pivot(rows, "family", ("placer", "groups"), columns, number_of(value)))


def granularity_tables(file: Path) -> Iterator[str]:
    """Yields what whole modules cost, by family."""
    placers = ("heft", "annealing", "local-search", "policy", "policy-refine")
    columns = {f"{placer}, {level}": (level, placer) for level in ("op", "module") for placer in placers}
    rows = read_table(file)
    head, *body = pivot(rows, "family", ("granularity", "placer"), columns, number_of("ratio_to_single"))
    graphs = {row["family"]: str(row["graphs"]) for row in rows}
    yield markdown_table(
        [[head[0], "graphs", *head[1:]], *([line[0], graphs[line[0]], *line[1:]] for line in body)]
    )


def neighbourhoods_tables(file: Path) -> Iterator[str]:
    """Yields each placer over `refine`, and choices by networks over others."""
    rows = read_table(file)
    budgets = axis(row["seconds"] for row in rows)
    first = [(name, "refine") for name in axis(row["placer"] for row in rows) if name != "refine"]
    others = ("all units", "any kind", "bandit")
    second = [("learned", other) for other in (*others, "random weights")]
    second += [("learned moves", other) for other in (*others, "random moves")]
    for title, pairs in (("over refine", first), ("", second)):
        body = [
            [own if title else f"{own} over {other}", *(_over(rows, own, other, each) for each in budgets)]
            for own, other in pairs
        ]
        yield markdown_table([[title, *(f"{each:g} s" for each in budgets)], *body])


def _over(rows: Sequence[RecordedRow], placer: str, other: str, seconds: float) -> str:
    """Formats the ratio of two placers with its interval, on what both placed with the same seed."""
    found = {
        (row["graph"], row["cluster"], row["seed"], row["placer"]): row
        for row in rows
        if row["seconds"] == seconds
    }
    logs = []
    for (graph, cluster, seed, name), row in found.items():
        beside = found.get((graph, cluster, seed, other))
        if name == placer and beside and row["feasible"] and beside["feasible"]:
            logs.append((row["family"], (graph, cluster), np.log(row["step_s"] / beside["step_s"])))
    return str(nested_interval(logs)) if logs else "-"


def pipeline_policy_tables(file: Path) -> Iterator[str]:
    """Yields placers over `refine`, and what each takes and finds with the greatest budget."""
    rows = read_table(file)
    budgets = axis(row["seconds"] for row in rows)
    body = []
    for name in axis(row["placer"] for row in rows)[1:]:
        own = [row for row in rows if row["placer"] == name and row["seconds"] == budgets[-1]]
        found = mean_cell(row["step_s"] for row in own if row["feasible"])
        cells = [_over(rows, name, "refine", each) for each in budgets]
        body.append([name, *cells, mean_cell(row["cpu_s"] for row in own), found])
    heads = [f"{each:g} s" for each in budgets]
    yield markdown_table([["placer", *heads, "processor seconds", "over one device"], *body])


def adaptation_tables(file: Path) -> Iterator[str]:
    """Yields regrets by number of measurements, and after ten by the rules of the world and by seed."""
    rows = read_table(file)
    counts = {f"{key} measured": own for key, own in _by_strategy(rows, "measurements").items()}
    over, lost = ["adapt over best of K"], [f"share of worlds lost by {HARM:.0%}"]
    for own in counts.values():
        pairs = zip(own["adapt"], own["best of K"], strict=True)
        ratios = [{**row, "ratio": row["ratio"] / other["ratio"]} for row, other in pairs]
        over.append(str(_ratio(ratios)))
        lost.append(f"{np.mean([row['ratio'] > 1 + HARM for row in ratios]):.1%}")
    yield markdown_table([*_regrets(counts), over, lost])
    ten = [row for row in rows if row["measurements"] == TEN]
    seeds = {f"seed {key}": own for key, own in _by_strategy(ten, "seed").items()}
    yield markdown_table(_regrets(_by_strategy(ten, "contention") | seeds))


def _by_strategy(rows: Sequence[RecordedRow], by: str) -> dict[Any, dict[str, list[RecordedRow]]]:
    groups = grouped(rows, lambda row: row[by])
    return {key: grouped(groups[key], lambda row: row["strategy"]) for key in sorted(groups)}


def _regrets(columns: Mapping[str, Mapping[str, Sequence[RecordedRow]]]) -> list[list[str]]:
    body = [["strategy", *columns]]
    for strategy in next(iter(columns.values())):
        means = [_ratio(own[strategy]) for own in columns.values()]
        body.append([strategy, *(f"{m - 1:.1%} ({low - 1:.1%} to {high - 1:.1%})" for m, low, high in means)])
    return body


def _ratio(rows: Sequence[RecordedRow]) -> Interval:
    """Resamples families, graphs on clusters, and worlds."""
    logs = ((row["family"], (row["graph"], row["cluster"]), np.log(row["ratio"])) for row in rows)
    return nested_interval(logs)


def optimality_tables(file: Path) -> Iterator[str]:
    """Yields how far from optimal placers are, and how tight the bound is, on problems that are closed."""
    rows = read_table(file)
    yield _found_table([row for row in rows if _is_hard(row)])
    yield _closed_table(rows)


def _is_trivial(row: RecordedRow) -> bool:
    """Says whether the fastest single device is optimal."""
    return bool(abs(row["single"] - 1) <= SAME_STEP)


def _is_hard(row: RecordedRow) -> bool:
    """Says whether one device is not optimal, and the budget too small to try many of the placements."""
    return not _is_trivial(row) and row["budget"] <= MOST_TRIED * row["placements"]


def _found_table(hard: Sequence[RecordedRow]) -> str:
    """Formats a row per budget and placer; placers that stop by themselves only with the least budget."""
    head = ["evaluations", "placer", "graphs", "optimal", "over the optimum, mean", "greatest", "CPU s, mean"]
    body = []
    least = min(row["budget"] for row in hard)
    for (budget, placer), own in grouped(hard, lambda row: (row["budget"], row["placer"])).items():
        stops = all(row["evaluations"] < least for row in own)
        if stops and budget > least:
            continue
        found = np.array([row["found"] for row in own])
        mean, optimal = np.exp(np.log(found).mean()), (found <= 1 + SAME_STEP).mean()
        cells = [f"{optimal:.0%}", f"{mean:.4f}", f"{found.max():.3f}"]
        made = f"{np.mean([row['evaluations'] for row in own]):.0f}" if stops else str(budget)
        body.append([made, placer, str(len(own)), *cells, f"{np.mean([row['cpu_s'] for row in own]):.3f}"])
    return markdown_table([head, *body])


def _closed_table(rows: Sequence[RecordedRow]) -> str:
    """Formats a row per cluster and granularity: how many graphs are closed, and how tight the bound is."""
    head = ["cluster", "placed by", "ops", "units", "graphs", "closed", "one device is optimal"]
    head += ["bound over optimum, mean", "least"]
    body = []
    for (cluster, level, groups), own in grouped(rows, _setting_of).items():
        by_graph = {row["graph"]: row for row in own}.values()
        cells = [_range([row[name] for row in by_graph]) for name in ("ops", "n_units")]
        cells.append(str(N_SEALED if groups else len(by_graph)))
        cells += [str(len(by_graph)), str(sum(_is_trivial(row) for row in by_graph))]
        bounds = np.array([row["bound"] for row in by_graph])
        tight = [f"{np.exp(np.log(bounds).mean()):.3f}", f"{bounds.min():.3f}"]
        body.append([cluster, f"group, {groups}" if groups else level, *cells, *tight])
    return markdown_table([head, *body])


def _setting_of(row: RecordedRow) -> tuple[str, str, str]:
    """Returns the cluster, the granularity and the number of groups; no number if a graph is left whole."""
    return row["cluster"], row["granularity"], row["graph"].partition("-in-")[2]


def _range(values: Sequence[int]) -> str:
    least, greatest = min(values), max(values)
    return str(least) if least == greatest else f"{least} to {greatest}"


def bounds_tables(*files: Path) -> Iterator[str]:
    """Yields how far what `refine` finds is from the bound, and what transfers add to the bound."""
    rows = dict(zip(LEVELS, map(read_table, files), strict=True))
    columns = {"gain of transfers": (rows["op"], "gain")}
    columns |= {f"refine over bound, {level}": (own, "refined") for level, own in rows.items()}
    yield markdown_table(_families(columns))
    head = ["placed by", "seconds of a bound, mean", "most"]
    seconds = {level: [row["seconds"] for row in own] for level, own in rows.items()}
    body = [[level, f"{sum(own) / len(own):.3f}", f"{max(own):.3f}"] for level, own in seconds.items()]
    yield markdown_table([head, *body])


def bounds_memory_tables(*files: Path) -> Iterator[str]:
    """Yields what memory adds to the bound where the fastest device has little of it."""
    cases = [f"{cluster}, {level}" for cluster in SCARCE for level in LEVELS[:2]]
    columns = {case: (read_table(file), "memory_gain") for case, file in zip(cases, files, strict=True)}
    most = [f"{max(row[name] for row in rows):.3f}" for rows, name in columns.values()]
    yield markdown_table([*_families(columns), ["greatest", "", *most]])


def _families(columns: Mapping[str, tuple[Sequence[RecordedRow], str]]) -> list[list[str]]:
    """Arranges geometric means: a row per family and one of all.

    Args:
        columns: rows, and the column of them that is averaged, by the head of the column.
    """
    first, _ = next(iter(columns.values()))
    table = [["family", "graphs", *columns]]
    for family in (*axis(row["family"] for row in first), ALL):
        values = [
            [row[name] for row in rows if family in (row["family"], ALL)] for rows, name in columns.values()
        ]
        table.append([family, str(len(values[0])), *map(mean_cell, values)])
    return table
