"""A grid has every combination, an ablation leaves out what the base has, and both repeat on every seed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agent.learn.config import ConfigError, TrainConfig
from agent.studies.study_config import StudyConfig
from agent.studies.study_trials import COMPONENTS, StudyTrial, components_of, leave_out, study_trials

BASE = TrainConfig(name="s", families=("ptb",), randomizations=1, init="pretrained")


def trials_of(context: str, **settings: Any) -> list[StudyTrial]:
    return study_trials(replace(BASE, context=context), StudyConfig(**settings))[0]


def test_a_grid_has_every_combination_on_every_seed() -> None:
    trials = trials_of("grid", vary=("hidden=4,8", "order=topo,topo+bfs"), seeds=2)
    assert [trial.name for trial in trials[:3]] == ["000-seed-0", "001-seed-0", "002-seed-0"]
    assert {trial.mode for trial in trials} == {"grid"}
    points = {(hidden, order) for hidden in (4, 8) for order in (("topo",), ("topo", "bfs"))}
    for seed in range(2):
        assert {
            (each.hidden, each.order) for each in (trial.config for trial in trials) if each.seed == seed
        } == points
    assert (trials[1].component, trials[1].params) == (
        "hidden=4 order=topo+bfs",
        {"hidden": 4, "order": "topo+bfs", "seed": 0},
    )
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
