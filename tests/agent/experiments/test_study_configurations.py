"""Results that a study reproduces: their commands plan the trainings that their tables show."""

from __future__ import annotations

import shlex
from pathlib import Path

from agent.commands.train import make_parser, resolve, study_settings
from agent.studies.ablation import plan_ablation
from agent.studies.grid import plan_grid
from agent.studies.study_config import StudyConfig
from agent.training.config import TrainConfig

RESULTS = (Path("agent") / "experiments" / "RESULTS.md").read_text(encoding="utf-8")


def settings_of(study: str) -> tuple[TrainConfig, StudyConfig]:
    """Settings of the command on the page that runs a study."""
    (line,) = (line for line in RESULTS.splitlines() if f"--name {study} " in line)
    command = line[line.index("train_agent.py") :].partition("`")[0]
    options = vars(make_parser().parse_args(shlex.split(command)[1:]))
    config = study_settings(options)
    assert config is not None
    return resolve(options, is_study=True)[0], config


def test_the_ablation_trains_each_variant_of_its_table() -> None:
    base, config = settings_of("ablation")
    trials = plan_ablation(base, config).trials
    table = RESULTS.split("| variant | flags |")[1].split("\n\n")[0].splitlines()[2:]
    assert len({trial.component for trial in trials}) == len(table) == 14
    assert len(base.families) == 6


def test_the_graphs_are_trained_on_from_each_start() -> None:
    trials = plan_grid(*settings_of("finetuning")).trials
    starts = [(trial.config.graphs, trial.config.init) for trial in trials]
    graphs = ("nmt-03.json", "inception-03.json", "bert-03.json")
    assert starts == [((graph,), init) for graph in graphs for init in ("pretrained", "")]
