"""Lines by case and numbers as text, for all reports of an evaluation."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import groupby

from agent.evaluation.comparison.summary import Line
from graphs.system.numbers import four_digits

Case = tuple[str, str, str, str]
"""Family, cluster, what was seen in training, and granularity."""
SEEN_NOTES = {
    "yes": " (seen by the policy in training)",
    "topology": " (the policy saw graphs of this structure in training)",
}


def by_case(lines: Sequence[Line]) -> Iterator[tuple[Case, list[Line]]]:
    """Lines by case: the shortest step first, those never feasible last."""

    def case(line: Line) -> Case:
        return line.family, line.cluster, line.seen, line.granularity

    def rank(line: Line) -> tuple[bool, float]:
        return line.ratio_to_single is None, line.ratio_to_single or 0.0

    for key, part in groupby(sorted(lines, key=case), key=case):
        yield key, sorted(part, key=rank)


def title(case: Case, uncalibrated: Collection[str] = ()) -> str:
    """Heading of the table of a case; it says what one decision places, if not an op.

    Args:
        uncalibrated: names of clusters whose op times come from datasheets.
    """
    family, cluster, seen, granularity = case
    note = " (uncalibrated)" if cluster in uncalibrated else ""
    unit = "" if granularity == "op" else f", placed by {granularity}"
    return f"{family or 'no family'} on {cluster}{note}{unit}{SEEN_NOTES.get(seen, '')}"


def figures(line: Line) -> tuple[str, ...]:
    """Formats step time, the ratios to others and their spread, what is feasible, and what it cost."""
    return (
        milliseconds(line.step_time_s),
        to_single(line),
        number(line.seed_spread),
        number(line.ratio_to_best),
        number(line.ratio_to_bound),
        number(line.ratio_to_refine),
        f"{line.feasible_share:.0%}",
        f"{line.evaluations:,.0f}",
        f"{line.cpu_s:.2g}",
        f"{line.wall_s:.2g}",
    )


def to_single(line: Line) -> str:
    """Formats the ratio to the fastest single device, with a * where none has the memory."""
    is_marked = line.ratio_to_single is not None and not line.single_fits
    return number(line.ratio_to_single) + ("*" if is_marked else "")


def number(value: float | None) -> str:
    """Three decimals, or a dash."""
    return "-" if value is None else f"{value:.3f}"


def milliseconds(seconds: float | None) -> str:
    """Seconds as milliseconds with four digits or more, or a dash."""
    return "-" if seconds is None else four_digits(1e3 * seconds)
