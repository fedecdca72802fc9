"""A grid has every combination, an ablation leaves out what the base has, and both repeat on every seed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agent.studies.study_config import StudyConfig
from agent.studies.study_trials import COMPONENTS, StudyTrial, components_of, leave_out, study_trials
from agent.training.config import ConfigError, TrainConfig

BASE = TrainConfig(name="s", families=("ptb",), randomizations=1, init="pretrained")


def trials_of(context: str, **settings: Any) -> list[StudyTrial]:
    return study_trials(replace(BASE, context=context), StudyConfig(**settings))[0]


def test_a_grid_has_every_combination_on_every_seed() -> None:
    trials = trials_of("grid", vary=("hidden=4,8", "order=topo,topo+bfs"), seeds=2, cold_control=True)
    assert [trial.name for trial in trials[:3]] == ["000-seed-0", "000-seed-0-cold", "001-seed-0"]
    warm = [trial for trial in trials if trial.mode == "grid"]
    assert {(each.config.hidden, each.config.order, each.config.seed) for each in warm} == {
        (hidden, order, seed)
        for hidden in (4, 8)
        for order in (("topo",), ("topo", "bfs"))
        for seed in (0, 1)
    }
    assert warm[1].component == "hidden=4 order=topo+bfs"
    assert warm[1].params == {"hidden": 4, "order": "topo+bfs", "seed": 0}
    assert len(trials) == len({trial.name for trial in trials}) == 16
    for trial in trials:
        assert trial.config.name == trial.name
        assert trial.config.context == "local"
        assert trial.config.init == ("" if trial.mode == "cold" else "pretrained")
    assert [trial.mode for trial in trials_of("grid", seeds=2)] == ["base"] * 2


def test_the_base_has_every_component_that_it_could_do_without() -> None:
    assert components_of(BASE) == tuple(COMPONENTS)
    for name in COMPONENTS:
        without = leave_out(BASE, name)
        assert without != BASE
        with pytest.raises(ConfigError, match=f"has no '{name}' to leave out"):
            leave_out(without, name)
    both = leave_out(BASE, "dagger+encoder")
    assert (both.dagger_rounds, both.encoder) == (0, "none")
    assert leave_out(BASE, "order=bfs").order == ("bfs",)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"without": ("luck",)}, "unknown component 'luck'"),
        ({"without": ("hidden=8,16",)}, "by one value"),
        ({"without": ("hidden=64",)}, "has no 'hidden=64' to leave out: hidden is 64 already"),
        ({"without": ("mask", "mask")}, "--without mask is given twice"),
    ],
)
def test_what_cannot_be_left_out_is_one_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        trials_of("ablation", **settings)


def test_every_component_is_left_out_on_every_seed() -> None:
    trials = trials_of("ablation", without=("dagger", "imitation", "dagger+encoder", "hidden=8"), seeds=2)
    assert [trial.component for trial in trials[:5]] == [
        "",
        "dagger",
        "imitation",
        "dagger+encoder",
        "hidden=8",
    ]
    assert [trial.mode for trial in trials[:5]] == ["base", *["without"] * 3, "replaced"]
    assert [trial.config.seed for trial in trials] == [0] * 5 + [1] * 5
    assert len({trial.name for trial in trials}) == 10


def test_what_decides_nothing_changes_no_hash() -> None:
    (trial,) = trials_of("grid")
    assert trial.config_hash == replace(trial, config=replace(trial.config, minutes=3.0)).config_hash
    assert trial.config_hash != replace(trial, config=replace(trial.config, hidden=32)).config_hash


def test_a_search_has_a_space_and_controls_have_a_policy() -> None:
    with pytest.raises(ConfigError, match="a search needs a space"):
        trials_of("search")
    with pytest.raises(ConfigError, match="give --init"):
        study_trials(replace(BASE, context="grid", init=""), StudyConfig(cold_control=True))
