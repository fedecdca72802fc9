"""Components are left out by settings that a training takes; the effect of that is compared in pairs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from agent.studies.ablation import INCONCLUSIVE, ablation_trials, effects, write_effects
from agent.studies.components import COMPONENTS, components_of, leave_out
from agent.studies.record import COMPLETE, Attempt, Record
from agent.studies.study_config import StudyConfig
from agent.studies.trial_process import JUDGEMENT
from agent.training.config import ConfigError, TrainConfig
from graphs.system.json_files import write_json_atomic

BASE = TrainConfig(name="s", families=("ptb",), randomizations=1, init="pretrained")


def test_the_base_has_every_component_that_it_could_do_without() -> None:
    assert components_of(BASE) == list(COMPONENTS)
    for name in COMPONENTS:
        without = leave_out(BASE, name)
        assert without != BASE
        with pytest.raises(ConfigError, match=f"has no '{name}' to leave out"):
            leave_out(without, name)


def test_groups_and_replacements() -> None:
    both = leave_out(BASE, "dagger+encoder")
    assert (both.dagger_rounds, both.encoder) == (0, "none")
    assert leave_out(BASE, "order=bfs").order == ("bfs",)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("luck", "unknown component 'luck'"),
        ("hidden=8,16", "by one value"),
        ("hidden=64", "has no 'hidden=64' to leave out: hidden is 64 already"),
    ],
)
def test_what_cannot_be_left_out_is_one_line(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        leave_out(BASE, name)


def test_every_component_is_left_out_on_every_seed() -> None:
    config = StudyConfig(without=("dagger", "imitation", "dagger+encoder"), seeds=2)
    trials = ablation_trials(BASE, config).trials
    names = [trial.component for trial in trials[: len(trials) // 2]]
    assert names == ["", "dagger", "imitation", "dagger+encoder"]
    assert [trial.config.seed for trial in trials] == [0] * 4 + [1] * 4
    assert len({trial.name for trial in trials}) == 8


def judged(record: Record, component: str, seed: int, ratios: dict[str, float]) -> None:
    name = f"{component or 'base'}-seed-{seed}"
    folder = record.folder / "trials" / name
    folder.mkdir(parents=True)
    write_json_atomic(folder / JUDGEMENT, ratios)
    attempt = Attempt("s", len(record.attempts) + 1, name, "ablation", component, "without", seed, COMPLETE)
    record.add(replace(attempt, held_out=1.0))


def test_an_effect_is_paired_by_seed_and_graph(tmp_path: Path) -> None:
    """Graphs and seeds differ tenfold; the effect of 10 % is seen all the same, and noise is inconclusive."""
    record, rng = Record(tmp_path), np.random.default_rng(0)
    for seed in range(3):
        base = {f"g{at} on c": 10.0 ** rng.uniform(-1, 1) for at in range(8)}
        judged(record, "", seed, base)
        judged(record, "encoder", seed, {graph: 1.1 * ratio for graph, ratio in base.items()})
        noise = {graph: ratio * rng.choice([0.9, 1 / 0.9]) for graph, ratio in base.items()}
        judged(record, "entropy", seed, noise)
    encoder, entropy = effects(record)
    assert (encoder.component, encoder.verdict) == ("encoder", "slower without")
    assert (encoder.ratio, encoder.n_seeds, encoder.n_graphs) == (pytest.approx(1.1), 3, 8)
    assert (entropy.component, entropy.verdict) == ("entropy", INCONCLUSIVE)
    assert entropy.low < 1 < entropy.high
    write_effects(tmp_path, [encoder, entropy])
    assert "entropy" in (tmp_path / "effects.csv").read_text()
    assert replace(encoder, n_seeds=1).verdict == INCONCLUSIVE
