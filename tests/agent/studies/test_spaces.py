"""Settings in words become values, or one line that says what is wrong."""

from __future__ import annotations

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from agent.learn.config import ConfigError
from agent.studies.study_trials import Distribution, in_words, read_space, settings_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hidden=32,64", CategoricalDistribution([32, 64])),
        ("--learning-rate=1e-3,1", CategoricalDistribution([1e-3, 1.0])),
        ("inference=true,False", CategoricalDistribution([True, False])),
        ("order=topo,topo+bfs", CategoricalDistribution(["topo", "topo+bfs"])),
        ("init=1e5,pretrained", CategoricalDistribution(["1e5", "pretrained"])),
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
        ("hidden=wide", "use a whole number"),
        ("hidden=0,8", "use at least 1"),
        ("learning_rate=nan", "use a number"),
        ("advantage=none", "use op or graph or batch"),
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
