"""The tables of settled questions on policies and their training."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path

import numpy as np

from agent.lab.rows import (
    RecordedRow,
    axis,
    grouped,
    markdown_table,
    number_cell,
    pivot,
    read_table,
)

TRAINING = "seed"
"""Begin of the names of equal trainings in the rows of the question on these; others are beside them."""


def ablation_tables(file: Path) -> Iterator[str]:
    """Yields what each part of the policy and its training is worth."""
    rows = read_table(file)
    names = {"policy": "one decode", "policy-sample": "17 decodes"}
    columns = {
        f"{families}, {names[placer]}": (placer, families)
        for placer, families in axis((row["placer"], row["families"]) for row in rows)
    }
    head, _, *body = pivot(rows, "variant", ("placer", "families"), columns, _ablation_cell)
    yield markdown_table([head, *body])


def _ablation_cell(row: RecordedRow) -> str:
    spread = row["spread_over_trainings"]
    shown = "" if spread is None else f"; ± {spread:.3f}"
    return f"{row['ratio']:.3f} ({row['low']:.3f} to {row['high']:.3f}{shown})"


def finetuning_tables(file: Path) -> Iterator[str]:
    """Yields what the shipped policy is worth as a start of a training for one graph."""
    rows = read_table(file)
    ratio_of = {(row["graph"], row["placed_by"], row["seconds"]): row["ratio_to_single"] for row in rows}
    times = sorted({row["seconds"] for row in rows if row["seconds"] is not None})
    starts = axis(row["placed_by"] for row in rows if row["seconds"] is not None)
    others = axis(row["placed_by"] for row in rows if row["seconds"] is None)
    table = [["graph", "from", *(f"{second} s" for second in times), *others]]
    for graph in axis(row["graph"] for row in rows):
        placed = [ratio_of[graph, name, None] for name in others]
        for start in starts:
            curve = [ratio_of[graph, start, second] for second in times]
            table.append([graph, start, *map(number_cell, curve + placed)])
    yield markdown_table(table)


def pretraining_tables(file: Path) -> Iterator[str]:
    """Yields how far one decode of each trained policy is from annealing, by cluster and by family."""
    rows = read_table(file)
    policies = axis(row["policy"] for row in rows)
    trainings = [policy for policy in policies if policy.startswith(TRAINING)]
    for keys in (("cluster", "size"), ("family",)):
        table = [[*keys, "graphs", *policies, "mean of trainings", "spread"]]
        for case, own in grouped(rows, itemgetter(*keys)).items():
            logs = {
                policy: float(np.mean([np.log(row["over_annealing"]) for row in found]))
                for policy, found in grouped(own, lambda row: row["policy"]).items()
            }
            trained = np.array([logs[policy] for policy in trainings])
            means = np.exp([*logs.values(), trained.mean()]).tolist()
            cells = [number_cell(value) for value in (*means, float(trained.std(ddof=1)))]
            table.append([*(case if len(keys) > 1 else (case,)), str(len(own) // len(policies)), *cells])
        yield markdown_table(table)


def speed_tables(file: Path) -> Iterator[str]:
    """Yields how fast training and decoding are."""
    body = [list(map(str, row.values())) for row in read_table(file)]
    yield markdown_table([["", "one thread", "two threads"], *body])


def decoding_tables(file: Path) -> Iterator[str]:
    """Yields how long a decision of a policy takes, encoding included, and the same by torch."""
    head = ["graph", "walks", "features", "us a decision", "scored by torch, us", "ratio"]
    body = [
        [
            row["graph"],
            str(row["walks"]),
            row["features"],
            f"{row['us']:.1f}",
            f"{row['torch_us']:.1f}",
            f"{row['torch_us'] / row['us']:.1f}",
        ]
        for row in read_table(file)
    ]
    yield markdown_table([head, *body])
