"""The report of a study: settings by their mean over seeds, components and warm starts in pairs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from agent.studies.record import Attempt
from agent.studies.study_report import INCONCLUSIVE, compared, effects
from graphs.system.json_files import FileFormatError, write_json_atomic

ROW = Attempt("s", 1, "000-seed-0", "grid", "hidden=8", "grid", 0, "complete", best_score=0.5, held_out=0.6)


def test_settings_stand_by_their_mean_over_seeds() -> None:
    rows = [
        ROW,
        replace(ROW, trial="000-seed-1", seed=1, best_score=0.7, held_out=0.8),
        replace(ROW, trial="001-seed-0", component="hidden=4", best_score=0.4, held_out=None),
        replace(ROW, trial="002-seed-0", component="hidden=2", status="failed", best_score=0.1),
    ]
    head, _, *lines, legend = compared(rows)
    assert head.split() == ["settings", "score", "±", "held", "out", "seeds"]
    assert [line.split() for line in lines] == [
        ["hidden=4", "0.400", "-", "-", "1"],
        ["hidden=8", "0.600", "0.141", "0.700", "2"],
    ]
    assert legend.endswith("means over seeds")
    assert compared([ROW])[0].split() == ["settings", "score", "held", "out", "seeds"]


def test_an_effect_is_paired_by_seed_and_graph(tmp_path: Path) -> None:
    """Graphs and seeds differ tenfold; the effect of 10 % is seen all the same, and noise is inconclusive."""
    rows: list[Attempt] = []
    rng = np.random.default_rng(0)

    def judged(component: str, seed: int, ratios: dict[str, float]) -> None:
        trial = f"{component or 'base'}-seed-{seed}"
        (tmp_path / "trials" / trial).mkdir(parents=True)
        write_json_atomic(tmp_path / "trials" / trial / "held_out.json", ratios)
        rows.append(replace(ROW, trial=trial, component=component, seed=seed))

    for seed in range(3):
        base = {f"g{at} on c": 10.0 ** rng.uniform(-1, 1) for at in range(8)}
        judged("", seed, base)
        judged("encoder", seed, {graph: 1.1 * ratio for graph, ratio in base.items()})
        judged("entropy", seed, {graph: ratio * rng.choice([0.9, 1 / 0.9]) for graph, ratio in base.items()})
    encoder, entropy = effects(tmp_path, rows)
    assert (encoder.component, encoder.verdict) == ("encoder", "slower without")
    assert (encoder.ratio, encoder.n_seeds, encoder.n_graphs) == (pytest.approx(1.1), 3, 8)
    assert (entropy.component, entropy.verdict) == ("entropy", INCONCLUSIVE)
    assert entropy.low < 1 < entropy.high
    assert effects(tmp_path, [row for row in rows if row.seed == 0])[0].verdict == INCONCLUSIVE
    write_json_atomic(tmp_path / "trials" / "base-seed-0" / "held_out.json", {"g0 on c": -1.0})
    with pytest.raises(FileFormatError, match="holds no step times"):
        effects(tmp_path, rows)
