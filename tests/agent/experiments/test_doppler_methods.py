"""Published agents on Doppler's graphs: their rows, and the placements that are kept of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from agent.experiments.doppler_methods import AgentRow, method_rows
from agent.experiments.doppler_train import GRAPHS, SETTINGS
from agent.experiments.experiment import EXPERIMENTS, RESULTS, ExperimentError
from agent.experiments.rows import read_rows
from agent.instances.instance import find_instances, find_names
from envs.placements.placement import Placement

AGENTS = read_rows(RESULTS / EXPERIMENTS["doppler_methods"].rows[0], AgentRow)


@pytest.mark.parametrize("row", AGENTS, ids=lambda row: f"{row.graph}-{row.method}")
def test_a_kept_placement_has_the_step_of_its_row(row: AgentRow) -> None:
    (instance,) = find_instances([f"doppler:{row.graph}"])
    placement = Placement(np.array([*map(int, row.device_of)]))
    assert instance.simulate(placement).total_s == pytest.approx(row.step_s, rel=1e-12)
    assert row.step_s <= row.last_s
    assert 1 <= row.best_episode <= row.episodes <= row.of_episodes


def test_graphs_have_the_names_of_the_instances() -> None:
    assert [f"doppler:{name}" for name in GRAPHS] == find_names(["doppler:*"])


def test_rows_are_the_best_of_the_episodes(tmp_path: Path) -> None:
    (instance,) = find_instances(["doppler:chain_mm"])
    devices = np.arange(instance.graph.n_ops) % 4
    step_s = instance.simulate(Placement(devices)).total_s
    single_s = instance.simulate(Placement(0 * devices)).total_s
    episodes = [
        {"episode": 0, "cpu_s": 1.0, "step": 1e3 * single_s, "devices": [0] * len(devices)},
        {"episode": 1, "cpu_s": 2.0, "step": 1.25e3 * step_s, "devices": devices.tolist()},
        {"episode": 2, "cpu_s": 3.0, "step": 1e3 * step_s, "devices": devices.tolist()},
    ]
    settings = tmp_path / "code/config_files" / SETTINGS["gdp"]
    settings.parent.mkdir(parents=True)
    settings.write_text('{"num_episode": 2000}')
    folder = tmp_path / "agents/chain_mm-gdp"
    folder.mkdir(parents=True)
    (folder / "episodes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in episodes))
    (row,) = next(method_rows(tmp_path, ["heft"], [1.0]))
    assert isinstance(row, AgentRow)
    assert (row.method, row.episodes, row.of_episodes, row.best_episode, row.cpu_s) == (
        "gdp",
        3,
        2000,
        2,
        3.0,
    )
    assert row.step_s == step_s < single_s
    assert row.last_s == pytest.approx((single_s + 2 * step_s) / 3)
    assert (row.differing, row.difference) == (1, pytest.approx(0.25))


def test_no_episodes_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match=r"has no episodes; run sh agent/experiments/doppler\.sh"):
        next(method_rows(tmp_path, ["heft"], [1.0]))
