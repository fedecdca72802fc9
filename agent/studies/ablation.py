"""An ablation: the base, and the base without each of some components, on the same seeds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np

from agent.evaluation.comparison.intervals import crossed_interval
from agent.studies.components import components_of, leave_out
from agent.studies.record import COMPLETE, Record, StudyTrial
from agent.studies.study_config import StudyConfig
from agent.studies.trial_lists import TrialList, on_seeds
from agent.studies.trial_process import read_judgement
from agent.training.config import ConfigError, TrainConfig
from graphs.system.csv_files import write_csv

INCONCLUSIVE, ROUNDING = "inconclusive", 1e-6


def ablation_trials(base: TrainConfig, config: StudyConfig) -> TrialList:
    """Lists the trials of an ablation: the base first, then without each component or group.

    Raises:
        ConfigError: an unknown component, or one that the base does not have.
    """
    names = list(config.without) or components_of(base)
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"--without {name} is given twice")
    trials = [StudyTrial("base", base)]
    for number, name in enumerate(names, start=1):
        mode = "replaced" if "=" in name else "without"
        trials.append(StudyTrial(f"{number:03d}", leave_out(base, name), name, mode))
    return TrialList(on_seeds(trials, config))


@dataclass(frozen=True)
class Effect:
    """The effect of leaving a component out: the step time over that of the base.

    Attributes:
        ratio: geometric mean over graphs, and over the seeds of the trainings.
        low, high: its 95 % interval; graphs and seeds are resampled.
        n_seeds, n_graphs: how many both trainings have.
    """

    component: str
    ratio: float
    low: float
    high: float
    n_seeds: int
    n_graphs: int

    @property
    def verdict(self) -> str:
        """Reads the interval; one seed says nothing of another training."""
        if self.n_seeds < 2 or (self.low <= 1 + ROUNDING and self.high >= 1 - ROUNDING):
            return INCONCLUSIVE
        return "slower without" if self.ratio > 1 else "faster without"


def effects(record: Record) -> list[Effect]:
    """Compares each component's trials with the base's of the same seed, graph by graph; the largest first.

    Graphs are those that chose nothing; the step is simulated, whatever a trial was trained with.

    Raises:
        InputError: a trial's judgement is damaged.
    """
    judged: dict[str, dict[int, dict[str, float]]] = defaultdict(dict)
    for attempt in record.attempts.values():
        if attempt.status == COMPLETE and attempt.held_out is not None and attempt.mode != "cold":
            folder = record.folder / "trials" / attempt.trial
            judged[attempt.component][attempt.seed] = read_judgement(folder)
    base = judged.pop("", {})
    found = [_effect(name, by_seed, base) for name, by_seed in judged.items() if by_seed.keys() & base.keys()]
    return sorted(found, key=lambda effect: -effect.ratio)


def _effect(name: str, own: dict[int, dict[str, float]], base: dict[int, dict[str, float]]) -> Effect:
    seeds = sorted(own.keys() & base.keys())
    graphs = sorted(set.intersection(*({*own[seed]} & {*base[seed]} for seed in seeds)))
    logs = np.log([[own[seed][graph] / base[seed][graph] for graph in graphs] for seed in seeds])
    return Effect(name, *crossed_interval(logs), len(seeds), len(graphs))


def table(found: Iterable[Effect]) -> list[str]:
    """Lines for a terminal of 80 columns: a bar from the base's step time to the one without."""
    lines = [f"{'without':<26} {'/base':>6}  {'95 % interval':<16} {'':<14}"]
    for effect in found:
        interval = f"{effect.low:.3f} to {effect.high:.3f}"
        lines.append(f"{effect.component[:26]:<26} {effect.ratio:>6.3f}  {interval:<16} {effect.verdict}")
    return lines


def write_effects(folder: Path, found: list[Effect]) -> None:
    """Writes `effects.csv`."""
    columns = [*(item.name for item in fields(Effect)), "verdict"]
    rows = [[*asdict(effect).values(), effect.verdict] for effect in found]
    write_csv(folder / "effects.csv", columns, rows)
