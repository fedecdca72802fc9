"""Groups of families that are left out: their trainings, their graphs, and the table of their rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.experiments import leave_one_out
from agent.experiments.command import main
from agent.experiments.leave_one_out import GROUPS, SETTINGS, LeftOutRow, changes_of, graphs_of
from agent.experiments.rows import read_rows
from agent.policy.serialization import read_policy
from tests.agent.evaluation_cases import make_trial


def test_a_group_is_left_out_of_its_training_alone() -> None:
    changes = changes_of(list(GROUPS))
    for group, changed in changes.items():
        assert set(GROUPS[group]).isdisjoint(changed["families"])
        others = [other for name, other in changes.items() if name != group]
        assert all(set(GROUPS[group]) < set(other["families"]) for other in others)


def test_groups_share_no_family() -> None:
    families = [family for group in GROUPS.values() for family in group]
    assert len(families) == len(set(families))


def test_some_graphs_are_those_of_every_family() -> None:
    names = [graph.name for graph in graphs_of("cnn", 5)]
    assert names == [f"{family}-{number:02}" for family in GROUPS["cnn"] for number in (0, 5, 10)]


@pytest.fixture
def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes the shipped policy for every training, and lets it be twice as slow on the second seed."""

    def evaluated(spec: object, folder: Path, jobs: int) -> list[object]:
        slow = 2.0 if "seed-1" in str(folder) else 1.0
        return [
            make_trial(placer="annealing", step_time_s=1.0),
            make_trial(placer="policy", step_time_s=slow),
        ]

    monkeypatch.setattr(leave_one_out, "train_all", lambda *_: None)
    monkeypatch.setattr(leave_one_out, "open_policy", lambda path, graphs: read_policy("pretrained"))
    monkeypatch.setattr(leave_one_out, "evaluated", evaluated)


def test_trainings_are_the_seeds_of_a_row(
    no_training: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--left-out", "cnn", "--trials", "1-second", "--every", "14", "--seeds", "2"]
    assert main(["leave_one_out", *flags, "--out", str(tmp_path)]) == 0
    row = read_rows(tmp_path / "leave_one_out.csv", LeftOutRow)[-1]
    assert (row.setting, row.cluster, row.group, row.placer) == ("1-second", "4xv100", "cnn", "policy")
    assert row.ratio == pytest.approx(2**0.5)
    assert row.low == 1.0
    assert row.high == pytest.approx(2.0)
    printed = capsys.readouterr().out
    assert "| 1-second | policy | 1.414 (1.000 to 2.000) |" in printed
    assert "| 1-second | policy | 0 : 1 of 1 |" in printed


@pytest.mark.parametrize("flag", ["--left-out", "--trials"])
def test_an_unknown_name_is_wrong_input(
    flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["leave_one_out", flag, "mlp", "--out", str(tmp_path)]) == 2
    known = next(iter(GROUPS)) if flag == "--left-out" else SETTINGS[0].name
    assert f"'mlp' is unknown; use some of {known}" in capsys.readouterr().err
