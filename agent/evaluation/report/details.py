"""Single graphs of the report: the steps of two placers, side by side, where they differ most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from agent.evaluation.answers import Answers, BestPlacement, placement_path
from agent.evaluation.comparison.ratios import Where
from agent.evaluation.comparison.summary import milliseconds
from agent.evaluation.report.figures import as_svg
from agent.evaluation.report.tables import Table, render
from agent.evaluation.results import Trial
from agent.placers.base import PLACERS
from envs.figures import step_figure
from envs.graph_figure import graph_figure
from envs.objective import PIPELINE, STEP
from graphs.system.errors import InputError, four_digits

GIB = 2**30
WIDTH_IN = 7.2
MOST = 6
"""Graphs that are shown one by one; each takes up to half a megabyte."""


@dataclass(frozen=True)
class Pair:
    """The best trials of two placers on one graph and cluster.

    Attributes:
        left, right: of the best placer with a policy and of the best other one; where there are none of a
            kind, of the best and the worst placer.
    """

    left: Trial
    right: Trial

    @property
    def ratio(self) -> float:
        """Step time of the left one over that of the right one."""
        return self.left.step_time_s / self.right.step_time_s


def pairs(trials: Sequence[Trial]) -> list[Pair]:
    """Finds a pair per graph and cluster where two placers are feasible, the largest difference first."""
    by_where: dict[Where, list[Trial]] = {}
    for trial in trials:
        if trial.feasible and trial.is_placement and trial.step_time_s > 0:
            by_where.setdefault((trial.graph, trial.cluster), []).append(trial)
    several = [trials for trials in by_where.values() if len({(t.placer, t.order) for t in trials}) > 1]
    return sorted(map(_pair, several), key=lambda pair: -max(pair.ratio, 1 / pair.ratio))


def _pair(trials: Sequence[Trial]) -> Pair:
    ranked = sorted(trials, key=lambda trial: (trial.step_time_s, trial.seed))
    learned = [t for t in ranked if t.placer in PLACERS and PLACERS[t.placer].is_learned]
    others = [t for t in ranked if t not in learned]
    if learned and others:
        return Pair(learned[0], others[0])
    worst = next(t for t in reversed(ranked) if (t.placer, t.order) != (ranked[0].placer, ranked[0].order))
    return Pair(ranked[0], worst)


def detail_section(answers: Answers, pairs: Sequence[Pair]) -> Markup:
    """Shows the graphs on which two placers differ most, one at a time; empty where there are none."""
    graphs = []
    for pair in pairs[:MOST]:
        name = f"{pair.left.graph} on {pair.left.cluster}"
        try:
            sides = [answers.of(pair.left), answers.of(pair.right)]
        except InputError:  # someone has removed or changed the file
            continue
        until_s = max(side.step.total_s for side in sides)
        graphs.append({"name": name, "sides": [_side(side, name, until_s) for side in sides]})
    return render("details.html", graphs=graphs, n_pairs=len(pairs)) if graphs else Markup()


def _side(answer: BestPlacement, graph: str, until_s: float) -> dict[str, object]:
    """A placement or pipeline as `details.html` shows it."""
    step, (what, table_of) = answer.step, TABLES[answer.objective.kind]
    more, devices = table_of(answer)
    timeline = step_figure(answer.objective, answer.placement, step, "")
    timeline.axes[0].set_xlim(0.0, timeline.axes[0].get_xlim()[1] * until_s / (step.total_s or until_s))
    placed, graph_by = graph_figure(answer.problem, answer.device_of, ""), f"of {graph} by {answer.name}"
    for figure in (timeline, placed):
        figure.set_figwidth(WIDTH_IN)
    return {
        "name": answer.name,
        "href": placement_path(Path(), answer.trial).as_posix(),
        "step": milliseconds(step.total_s),
        "more": more,
        "devices": devices,
        "figures": [as_svg(timeline, f"{what} and memory {graph_by}"), as_svg(placed, f"devices {graph_by}")],
    }


def _stage_table(answer: BestPlacement) -> tuple[str, Table]:
    rows = [
        (
            str(row.stage),
            row.device,
            f"{row.first_op} to {row.last_op}",
            milliseconds(row.forward_s),
            milliseconds(row.backward_s),
            f"{row.peak_bytes / GIB:,.2f}",
            f"{row.memory_bytes / GIB:,.2f}",
        )
        for row in answer.view.table()
    ]
    columns = ("stage", "device", "forward ops", "forward, ms", "backward, ms", "memory, GiB", "of")
    pace = four_digits(answer.view.step.throughput_per_s)
    more = f"{pace} microbatches a second, {answer.view.step.bubble_share:.0%} bubble"
    return more, Table(columns, rows)


def _device_table(answer: BestPlacement) -> tuple[str, Table]:
    step = answer.view.step
    rows = [
        (
            device.name,
            f"{busy_s / step.total_s:.0%}" if step.total_s else "-",
            f"{peak / GIB:,.2f}",
            f"{device.memory_bytes / GIB:,.2f}",
            f"{peak / device.memory_bytes:.0%}",
        )
        for device, busy_s, peak in zip(
            answer.problem.cluster.devices, step.busy_s, step.peak_bytes, strict=True
        )
    ]
    table = Table(("device", "busy", "memory, GiB", "of", "used"), rows)
    return f"{step.transfer_bytes / 1e6:,.1f} MB sent", table


TABLES = {STEP: ("timeline", _device_table), PIPELINE: ("pipeline", _stage_table)}
"""Name of the figure of each kind of objective, and what makes its remark and its table."""
