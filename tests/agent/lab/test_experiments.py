"""The command of the lab and its experiments: the benchmark, and trials on the sealed set."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.instances.instance import find_instances
from agent.lab import trials
from agent.lab.__main__ import FLAGS, main
from agent.lab.bench import BenchmarkRow
from agent.lab.pivot import ExperimentError, Row, read_table, write_rows
from agent.lab.questions import EXPERIMENTS
from agent.lab.trials import FIRST_SEED, LARGE, NEW, PRETRAINED, RANDOM, SealedTrials, sealed_graphs
from agent.policy.serialization import read_policy
from envs.placements.files import read_placement
from graphs.families import FAMILIES
from graphs.op_graph import OpGraph
from graphs.system.errors import InputError
from tests.agent.placement_cases import training_graph
from tests.test_imports import HEAVY

ROOT = Path(__file__).parents[3]


def test_all_experiments_are_listed_and_nothing_heavy_is_loaded() -> None:
    code = "import sys; from agent.lab.__main__ import main; main(['--help']); main([]); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    *lines, loaded = done.stdout.splitlines()
    assert not {*loaded.split()} & {*HEAVY}
    for name, experiment in EXPERIMENTS.items():
        assert sum(line.split() == [name, *experiment.question.split()] for line in lines) == 2


def test_every_setting_is_a_flag_and_every_quick_run_has_settings() -> None:
    settings: set[str] = set()
    for experiment in EXPERIMENTS.values():
        assert "\n" not in experiment.question
        settings |= vars(experiment.run).keys()
        run: Any = experiment.run
        assert replace(run, **experiment.quick) != run
    assert set(FLAGS) == settings


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("nix", "unknown experiment 'nix'; use one of benchmark, "),
        ("optimality --only tables", "optimality: is settled; "),
        ("budgets --only tables --out .", ".: has no budgets.csv.gz; run "),
        ("budgets --placers nix", "unknown placer 'nix'; use memory-fill"),
        ("benchmark --placers nix", "unknown placer 'nix'; use some of memory-fill"),
        ("benchmark --graphs nix", "no instance is named 'nix'"),
        ("benchmark --graphs piper:resnet --placers heft", "none of the placers suits these instances"),
    ],
)
def test_wrong_input_is_one_line(
    words: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == 2
    assert f"agent.lab: {message}" in capsys.readouterr().err.splitlines()[-1]


NAME, PIPELINE = "doppler:chain_mm", "pipedream:alexnet"


def test_a_run_resumes_and_keeps_its_best_placements(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def rows_of(*placers: str) -> dict[str, Row]:
        words = f"benchmark --graphs {NAME} {PIPELINE} --seconds 0.1 --out {tmp_path} --placers".split()
        assert main([*words, *placers]) == 0
        return {row["placer"]: row for row in read_table(tmp_path / "benchmark.csv.gz")}

    rows = rows_of("heft", "pipedream")
    assert "Doppler's reinforcement (1,000 episodes), as reported" in capsys.readouterr().out
    assert [rows["heft"][key] for key in ("best_s", "bound_s")] == pytest.approx([1.20007] * 2)
    assert rows["heft"]["step_s"] > rows["heft"]["best_s"]
    pipelined = rows["pipedream"]
    assert pipelined["instance"] == PIPELINE
    assert pipelined["bound_s"] < pipelined["best_s"] <= pipelined["step_s"]
    placement, of_pipeline = sorted((tmp_path / "placements").iterdir())
    assert "stage_of" in json.loads(of_pipeline.read_text())
    (instance,) = find_instances([NAME])
    best = read_placement(placement, instance.graph, instance.cluster)
    assert instance.objective.simulate(best).total_s == pytest.approx(rows["heft"]["step_s"])
    kept, _ = sorted((tmp_path / "instances").iterdir())
    write_rows(kept, [asdict(BenchmarkRow(NAME, "heft", 1.0, 7.0, 10, 0.5, 1.0, 1.0))])
    assert rows_of("heft", "pipedream")["heft"]["step_s"] == 7.0
    both = {row["instance"] for row in rows_of("single", "heft").values() if row["seconds"]}
    assert both == {NAME, PIPELINE}
    assert {row["instance"] for row in rows_of("memory-fill").values()} == {NAME}, "it places no pipelines"


def test_the_graphs_that_are_kept_were_never_seen_and_no_training_can_name_their_families() -> None:
    card, graphs = read_policy("pretrained").card, [graph for _, graph in trials._kept()]
    for graph in graphs:
        assert graph.n_ops > (3_000 if graph.family in LARGE else 100)
        assert card.how_seen(graph) == "no"
        assert {"forward", "backward", "optimizer"} <= set(graph.phases)
    assert list(dict.fromkeys(graph.family for graph in graphs)) == [*NEW, *LARGE]
    assert not {*NEW, *LARGE} & set(FAMILIES)


def test_sealed_draws_are_none_of_those_that_anything_was_tuned_on(monkeypatch: pytest.MonkeyPatch) -> None:
    assert max(FAMILIES.values()) <= FIRST_SEED
    monkeypatch.setattr(
        trials, "capture_draw", lambda family, seed: training_graph(1, 1, name=f"{family}-{seed}")
    )

    def how_seen(graph: OpGraph) -> str:
        return "topology" if graph.name in ("vit-1000", "vit-1001") else "no"

    drawn = partial(sealed_graphs, how_seen=how_seen)
    assert [graph.name for graph in drawn(("vit", "unet"))] == ["vit-1002", "unet-1000"]
    for families, first_seed, message in (
        (("unet",), 3, "sealed from 1000 on"),
        (("unet",), 5000, "no draw of unet from seed 5000 on"),
        (("none",), 1000, "no sealed family none; use some of cifar10"),
    ):
        with pytest.raises(InputError, match=message):
            drawn(families, first_seed=first_seed)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the sealed set one small graph."""
    monkeypatch.setattr(trials, "sealed_graphs", lambda *_, **options: [training_graph(3, 2)])


def test_a_run_makes_all_trials_and_resumes(
    drawn: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = f"--clusters 4xv100 2xk80 --seconds 0.02 3 --budget 20 --seeds 2 --out {tmp_path}"
    placers = f"--placers refine auto policy auto@{RANDOM} policy@{PRETRAINED}"
    words = ["budgets", *flags.split(), "--granularities", "op", *placers.split()]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "| cluster | graphs | 0.02 s | 20 evaluations |" in printed, "a small graph has no long budget"
    rows = read_table(tmp_path / "budgets.csv.gz")
    names = {"refine", "auto", "policy", "auto-random-weights", "policy-pretrained"}
    assert {row["placer"] for row in rows} == names
    assert len(rows) == 2 * 2 * (3 * 2 + 2), "policy takes one seed"
    for row in rows:
        assert row["bound_s"] <= row["step_s"] <= row["single_s"] * (1 + 1e-9)
        assert row["evaluations"] <= (row["budget"] or np.inf)
    monkeypatch.setattr("agent.evaluation.worker.Worker.outcome", None)  # nothing is left to make
    assert main(words) == 0
    assert capsys.readouterr().out == printed
    assert main([*words, "--seeds", "1"]) == 2
    assert "differs in seeds; give another --out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("placers", "message"),
    [(("heft",), r"1 trials failed, see failures\.csv"), (("policy@a/x", "auto@b/x"), "have the same name")],
)
def test_what_makes_no_rows(
    placers: tuple[str, ...], message: str, drawn: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise RuntimeError("no placement")

    monkeypatch.setattr("agent.placing.trial_runner.TrialRunner.place", fail)
    with pytest.raises(ExperimentError, match=message):
        SealedTrials(placers, ("4xv100",), (0.1,)).rows(tmp_path)
