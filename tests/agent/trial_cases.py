"""Trials and evaluations by hand, for the tests of tables."""

from __future__ import annotations

from pathlib import Path

from agent.evaluation.results import Trial, TrialJournal
from graphs.system.json_files import write_json_atomic


def trial(
    graph: str, placer: str, step_time_s: float, *, family: str = "toy", seed: int = 0, feasible: bool = True
) -> Trial:
    """A trial on a cluster `c`."""
    return Trial(
        graph=graph,
        family=family,
        cluster="c",
        order="",
        placer=placer,
        seed=seed,
        step_time_s=step_time_s,
        feasible=feasible,
        evaluations=1,
        wall_s=0.5,
        lower_bound_s=0.1,
        single_s=1.0,
        seen="no",
    )


def write_evaluation(folder: Path, *trials: Trial) -> Path:
    """Write what an evaluation leaves in its folder."""
    folder.mkdir(parents=True)
    write_json_atomic(folder / "settings.json", {"budget": {"evaluations": 10}})
    journal = TrialJournal(folder / "journal.jsonl")
    for each in trials:
        journal.add(each)
    return folder
