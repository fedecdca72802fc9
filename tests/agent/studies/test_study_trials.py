"""Trials of a study: settings in words, grids and ablations on every seed, and their report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from agent.learn.config import ConfigError, TrainConfig
from agent.studies.record import Attempt
from agent.studies.study_config import StudyConfig
from agent.studies.study_report import INCONCLUSIVE, compared, effects
from agent.studies.study_trials import (
    COMPONENTS,
    Distribution,
    StudyTrial,
    components_of,
    in_words,
    leave_out,
    read_space,
    settings_of,
    study_trials,
)
from graphs.system.json_files import FileFormatError, write_json_atomic

BASE = TrainConfig(name="s", families=("ptb",), randomizations=1, init="pretrained")


def trials_of(context: str, **settings: Any) -> list[StudyTrial]:
    return study_trials(replace(BASE, context=context), StudyConfig(**settings))[0]


def test_a_grid_has_every_combination_on_every_seed() -> None:
    trials = trials_of("grid", vary=("hidden=4,8", "order=topo,topo+bfs"), seeds=2)
    assert [trial.name for trial in trials[:3]] == ["000-seed-0", "001-seed-0", "002-seed-0"]
    assert {trial.mode for trial in trials} == {"grid"}
    points = {(hidden, order) for hidden in (4, 8) for order in (("topo",), ("topo", "bfs"))}
    for seed in range(2):
        configs = [trial.config for trial in trials if trial.config.seed == seed]
        assert {(config.hidden, config.order) for config in configs} == points
    assert trials[1].component == "hidden=4 order=topo+bfs"
    assert trials[1].params == {"hidden": 4, "order": "topo+bfs", "seed": 0}
    assert len({trial.name for trial in trials}) == len(trials) == 8
    assert len({trial.in_tensorboard for trial in trials}) == 8
    assert trials[1].in_tensorboard == "hidden=4,order=topo+bfs,seed=0"
    for trial in trials:
        assert (trial.config.name, trial.config.context) == (trial.name, "local")
        assert trial.config.init == "pretrained"
    assert [trial.mode for trial in trials_of("grid", seeds=2)] == ["base"] * 2


def test_the_base_has_every_component_that_it_could_do_without() -> None:
    assert components_of(BASE) == tuple(COMPONENTS)
    for name in COMPONENTS:
        with pytest.raises(ConfigError, match=f"has no '{name}' to leave out"):
            leave_out(leave_out(BASE, name), name)
    both = leave_out(BASE, "mask+encoder")
    assert (both.mask, both.encoder) == ("none", "none")
    assert leave_out(BASE, "order=bfs").order == ("bfs",)


@pytest.mark.parametrize(
    ("context", "settings", "message"),
    [
        ("ablation", {"without": ("luck",)}, "unknown component 'luck'"),
        ("ablation", {"without": ("hidden=8,16",)}, "by one value"),
        ("ablation", {"without": ("hidden=64",)}, "has no 'hidden=64' to leave out: hidden is 64 already"),
        ("ablation", {"without": ("mask", "mask")}, "--without mask is given twice"),
        ("search", {}, "a search needs a space"),
    ],
)
def test_what_cannot_be_done_is_one_line(context: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        trials_of(context, **settings)


def test_every_component_is_left_out_on_every_seed() -> None:
    trials = trials_of("ablation", without=("mask", "mask+encoder", "hidden=8"), seeds=2)
    assert [trial.component for trial in trials[:4]] == ["", "mask", "mask+encoder", "hidden=8"]
    assert [trial.mode for trial in trials[:4]] == ["base", "without", "without", "replaced"]
    assert [trial.config.seed for trial in trials] == [0] * 4 + [1] * 4
    assert len({trial.name for trial in trials}) == 8
    assert [trials[at].in_tensorboard for at in (0, 3)] == ["without=,seed=0", "without=hidden=8,seed=0"]


def test_what_decides_nothing_changes_no_hash() -> None:
    hashes = [
        StudyTrial("a", replace(BASE, **change)).config_hash
        for change in ({}, {"minutes": 3.0}, {"hidden": 8})
    ]
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hidden=32,64", CategoricalDistribution([32, 64])),
        ("inference=true,False", CategoricalDistribution([True, False])),
        ("order=topo,topo+bfs", CategoricalDistribution(["topo", "topo+bfs"])),
        ("hidden=4:32", IntDistribution(4, 32)),
        ("learning_rate=1e-4:1e-2:log", FloatDistribution(1e-4, 1e-2, log=True)),
    ],
)
def test_words_become_values(text: str, expected: Distribution) -> None:
    (values,) = read_space([text], ranges=True).values()
    assert repr(values) == repr(expected)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("widht=3", "unknown setting 'widht'; use "),
        ("seed=1,2", "use --seeds"),
        ("hidden=", "write hidden=VALUE,VALUE"),
        ("hidden=0,8", "use at least 1"),
        ("learning_rate=nan", "use a number"),
        ("hidden=8:4", "the range is empty"),
        ("entropy=0:1:log", "above 0 for log"),
        ("hidden=4:8:exp", "write hidden=LEAST:MOST"),
        ("encoder=sage:gat", "encoder is no number"),
        ("hidden=4 hidden=8", "--vary hidden is given twice"),
    ],
)
def test_wrong_words_are_one_line(words: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        read_space(words.split(), ranges=True)
    assert "\n" not in str(error.value)


def test_a_grid_takes_no_range() -> None:
    with pytest.raises(ConfigError, match="whole number"):
        read_space(["hidden=4:8"], ranges=False)


def test_points_become_settings_and_words() -> None:
    point = {"hidden": 8, "order": "topo+bfs", "learning_rate": 0.00123456}
    assert settings_of(point) == {**point, "order": ("topo", "bfs")}
    assert in_words(point) == "hidden=8 order=topo+bfs learning_rate=0.00123"


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
