"""The tables of placers over `refine` in equal time; rows are placers with budgets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from agent.evaluation.comparison.intervals import Interval
from agent.lab.rows import RecordedRow, axis, markdown_table, read_table

SHORTEST_S = 0.1
"""The least budget in which `refine` scored all heuristics first, when the rows were made."""


def equal_time_tables(file: Path, searches: Sequence[str], stopping: Sequence[str]) -> Iterator[str]:
    """Yields placers over `refine`.

    Args:
        searches: placers that use a whole budget: a row each, a column per budget, and the graphs won.
        stopping: placers that stop by themselves, compared at the next budget above their time.
    """
    rows = [row for row in read_table(file) if row["seconds"] >= SHORTEST_S]
    budgets = axis(row["seconds"] for row in rows)
    heads = [f"{seconds:g} s" for seconds in budgets]
    table = [["placer", *heads, f"won : lost, {heads[-1]}"]]
    for placer in searches:
        own = {row["seconds"]: row for row in rows if row["placer"] == placer}
        last = own.get(budgets[-1])
        cells = [_over(own[budget]) if budget in own else "" for budget in budgets]
        table.append([placer, *cells, f"{last['wins']} : {last['losses']}" if last else ""])
    yield markdown_table(table)
    table = [["placer", "processor seconds, mean", "over one device", "budget of refine", "over refine"]]
    for placer in stopping:
        kept = [row for row in rows if row["placer"] == placer and row["cpu_s"] <= row["seconds"]]
        least = min(kept, key=lambda row: row["seconds"])
        cells = [f"{least['cpu_s']:.3f}", f"{least['to_single']:.3f}", f"{least['seconds']:g} s"]
        table.append([placer, *cells, _over(least)])
    if stopping:
        yield markdown_table(table)


def _over(row: RecordedRow) -> str:
    return str(Interval(row["ratio"], row["low"], row["high"]))
