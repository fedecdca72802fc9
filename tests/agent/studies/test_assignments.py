"""Settings in words become values, or one line that says what is wrong."""

from __future__ import annotations

import pytest

from agent.studies.assignments import Choice, Range, parse_choice, parse_space
from agent.training.config import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hidden=32,64", Choice("hidden", (32, 64))),
        ("--learning-rate=1e-3", Choice("learning_rate", (1e-3,))),
        ("order=topo,topo+bfs", Choice("order", (("topo",), ("topo", "bfs")))),
        ("encoder=sage,gat", Choice("encoder", ("sage", "gat"))),
        ("init=pretrained", Choice("init", ("pretrained",))),
        ("hidden=4:32", Range("hidden", 4, 32, is_log=False)),
        ("learning_rate=1e-4:1e-2:log", Range("learning_rate", 1e-4, 1e-2, is_log=True)),
    ],
)
def test_words_become_values(text: str, expected: Choice | Range) -> None:
    assert parse_space(text) == expected
    if isinstance(expected, Range):
        assert expected.is_whole == (type(expected.least) is int)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("widht=3", "unknown setting 'widht'; use "),
        ("seed=1,2", "use --seeds"),
        ("hidden", "write hidden=VALUE,VALUE"),
        ("hidden=", "write hidden=VALUE,VALUE"),
        ("hidden=wide", "use a whole number"),
        ("hidden=0,8", "use at least 1"),
        ("advantage=none", "use op or graph or batch"),
        ("hidden=8:4", "the range is empty"),
        ("entropy=0:1:log", "above 0 for log"),
        ("hidden=4:8:exp", "write hidden=LEAST:MOST"),
        ("encoder=sage:gat", "encoder is no number"),
    ],
)
def test_wrong_words_are_one_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        parse_space(text)
    assert "\n" not in str(error.value)


def test_a_grid_takes_no_range() -> None:
    with pytest.raises(ConfigError, match="whole number"):
        parse_choice("hidden=4:8")
