"""The settings of a study: a training function run many times, with its configuration changed each time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from agent.learn.config import ConfigError
from graphs.system.settings import Settings, option

STUDIES = "studies (--context search, ablation or grid)"
"""Heading of the command line's help."""
MOST_SEEDS = 1000
setting = partial(option, group=STUDIES)


@dataclass(frozen=True)
class StudyConfig(Settings, error=ConfigError):
    """The settings that change from trial to trial, and how trials are run.

    Raises:
        ConfigError: a value of the wrong type or out of range.
    """

    vary: tuple[str, ...] = setting(
        (),
        "settings to vary; grid: every combination of FIELD=VALUE,VALUE; search: FIELD=VALUE,VALUE or "
        "FIELD=LEAST:MOST or FIELD=LEAST:MOST:log",
        metavar="FIELD=...",
    )
    without: tuple[str, ...] = setting(
        (),
        "components that an ablation leaves out, one at a time (default: all of the base); A+B leaves "
        "out both; FIELD=VALUE replaces a setting; `list` lists them",
        metavar="COMPONENT",
    )
    seeds: int = setting(1, "seeds for every study trial, starting at --seed", least=1, most=MOST_SEEDS)
    trials: int = setting(20, "study trials of a search", least=1, most=100_000)
    prune: str = setting(
        "median", "rule by which a search stops bad study trials", choices=("median", "asha", "never")
    )
    jobs: int = setting(
        1, "study trials that run at the same time, each in its own process", least=1, most=1024
    )
    attempts: int = setting(3, "number of times that a study trial is started if its process dies", least=1)
