"""An ablation: the base, and the base without each of some components, on the same seeds."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np

from agent.contexts.components import components_of, leave_out
from agent.contexts.plans import ListPlan, on_seeds
from agent.contexts.record import COMPLETE, Record, Trial
from agent.contexts.study_config import StudyConfig
from agent.contexts.trial_process import read_judgement
from agent.training.config import ConfigError, TrainConfig
from graphs.io.csv_files import write_csv
from graphs.io.json_files import write_bytes_atomic

RESAMPLES = 2_000
INCONCLUSIVE, ROUNDING = "inconclusive", 1e-6


def plan_ablation(base: TrainConfig, config: StudyConfig) -> ListPlan:
    """Plans the trials of an ablation: the base first, then without each component, group and pair.

    Raises:
        ConfigError: an unknown component, or one that the base does not have.
    """
    names = list(config.without) or components_of(base)
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"--without {name} is given twice")
    if config.pairs:
        names += [f"{a}+{b}" for a, b in itertools.combinations(names, 2) if _is_pair(base, a, b)]
    trials = [Trial("base", base)]
    for number, name in enumerate(names, start=1):
        mode = "replaced" if "=" in name else "without"
        trials.append(Trial(f"{number:03d}", leave_out(base, name), name, mode))
    return ListPlan(on_seeds(trials, config))


def _is_pair(base: TrainConfig, a: str, b: str) -> bool:
    """Whether leaving out both of two components is more than leaving out either."""
    if "=" in a or "=" in b:
        return False
    try:
        both = leave_out(base, f"{a}+{b}")
    except ConfigError:
        return False
    return both not in (leave_out(base, a), leave_out(base, b))


@dataclass(frozen=True)
class Effect:
    """What leaving a component out does to the step time, over that of the base.

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
        """What the interval says; one seed says nothing of another training."""
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
    low, high = _interval(logs)
    return Effect(name, float(np.exp(logs.mean())), low, high, len(seeds), len(graphs))


def _interval(logs: np.ndarray) -> tuple[float, float]:
    """95 % interval of the mean of (n_seeds, n_graphs) logarithms, from resampling both."""
    rng = np.random.default_rng(0)
    n_seeds, n_graphs = logs.shape
    seeds = rng.integers(n_seeds, size=(RESAMPLES, n_seeds))
    graphs = rng.integers(n_graphs, size=(RESAMPLES, n_graphs))
    drawn = [logs[np.ix_(some, others)].mean() for some, others in zip(seeds, graphs, strict=True)]
    low, high = np.exp(np.quantile(drawn, [0.025, 0.975]))
    return float(low), float(high)


def table(found: Iterable[Effect]) -> list[str]:
    """Lines for a terminal of 80 columns: a bar from the base's step time to the one without."""
    lines = [f"{'without':<26} {'/base':>6}  {'95 % interval':<16} {'':<14}"]
    for effect in found:
        interval = f"{effect.low:.3f} to {effect.high:.3f}"
        lines.append(f"{effect.component[:26]:<26} {effect.ratio:>6.3f}  {interval:<16} {effect.verdict}")
    return lines


def write_effects(folder: Path, found: list[Effect]) -> None:
    """Writes `effects.csv` and the ranked figure `effects.svg`."""
    columns = [*(item.name for item in fields(Effect)), "verdict"]
    rows = [[*asdict(effect).values(), effect.verdict] for effect in found]
    write_csv(folder / "effects.csv", columns, rows)
    write_bytes_atomic(folder / "effects.svg", figure(found).encode())


def figure(found: Sequence[Effect]) -> str:
    """Draws a dot with its interval for each effect, on a logarithmic axis, with a line at the base."""
    least = min(1.0, *(effect.low for effect in found)) / 1.02
    most = max(1.0, *(effect.high for effect in found)) * 1.02
    left, width, row, bottom = 230, 430, 22, 22 * len(found) + 40

    def x(ratio: float) -> float:
        return left + width * math.log(ratio / least) / math.log(most / least)

    parts = [f'<path d="M{x(1.0):.1f} 30V{bottom}" stroke="#888"/>']
    for ratio in (least * 1.02, 1.0, most / 1.02):
        parts.append(f'<text x="{x(ratio):.1f}" y="{bottom + 16}" text-anchor="middle">{ratio:.3f}</text>')
    for at, effect in enumerate(found):
        y, colour = 40 + row * at, "#999999" if effect.verdict == INCONCLUSIVE else "#4477aa"
        parts.append(f'<text x="{left - 10}" y="{y + 4}" text-anchor="end">{escape(effect.component)}</text>')
        parts.append(f'<path d="M{x(effect.low):.1f} {y}H{x(effect.high):.1f}" stroke="{colour}"/>')
        parts.append(f'<circle cx="{x(effect.ratio):.1f}" cy="{y}" r="4" fill="{colour}"/>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 40}" height="{bottom + 30}" '
        f'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>'
        f'<text x="10" y="18">step time without a component, over that of the base; grey: inconclusive</text>'
        f"{''.join(parts)}</svg>\n"
    )
