"""Results that a study reproduces: their commands plan the trainings that their tables show."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from agent.commands.train_flags import make_parser, resolve, study_settings
from agent.studies.study_config import StudyConfig
from agent.studies.study_trials import study_trials
from agent.training.config import TrainConfig
from graphs.orders import ORDERS

RESULTS = Path("agent") / "lab" / "results"


def settings_of(study: str) -> tuple[TrainConfig, StudyConfig]:
    """Settings of the command on the page that runs a study."""
    page = (RESULTS / f"{study}.md").read_text(encoding="utf-8")
    (command,) = (line for line in page.splitlines() if line.startswith("python train_agent.py"))
    options = vars(make_parser().parse_args(shlex.split(command)[2:]))
    del options["compile"]
    config = study_settings(options)
    assert config is not None
    return resolve(options)[0], config


def test_the_ablation_trains_each_variant_of_its_table() -> None:
    base, config = settings_of("ablation")
    trials, _ = study_trials(base, config)
    table = [
        line
        for line in (RESULTS / "ablation.md").read_text(encoding="utf-8").splitlines()
        if line[:2] == "| " and not line.startswith(("| encoder-transformer", "| encoder-placeto"))
    ]
    variants = len(table) - 2
    assert len({trial.component for trial in trials}) == variants + 1
    assert len(base.families) == 6


def test_the_graphs_are_trained_on_from_each_start() -> None:
    trials, _ = study_trials(*settings_of("finetuning"))
    starts = [(trial.config.graphs, trial.config.init) for trial in trials]
    graphs = ("nmt-03.json", "inception-03.json", "bert-03.json")
    assert starts == [((graph,), init) for graph in graphs for init in ("pretrained", "")]


@pytest.mark.parametrize("study", ["orders", "orders_equal_features", "orders_reinforcement"])
def test_each_family_is_trained_in_each_order_of_the_table(study: str) -> None:
    base, config = settings_of(study)
    trials, _ = study_trials(base, config)
    page = (RESULTS / f"{study}.md").read_text(encoding="utf-8")
    head, _, *rows = next(part for part in page.split("\n\n") if part.startswith("| family")).splitlines()
    orders = head.strip("| ").split(" | ")[2:]
    families = [row.split(" | ")[0].strip("| ") for row in rows[:-1]]
    planned = {(*trial.config.families, *trial.config.order) for trial in trials}
    assert planned == {(family, order) for family in families for order in orders}
    assert len(trials) == 3 * len(planned)
    assert set(orders) < set(ORDERS)
