"""The sealed set, and rows of trials on it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from agent.lab import trials
from agent.lab.__main__ import main
from agent.lab.pivot import ExperimentError, read_table
from agent.lab.trials import FIRST_SEED, KEPT, LARGE, NEW, PRETRAINED, RANDOM, SealedTrials, sealed_graphs
from agent.policy.serialization import read_policy
from graphs.families import FAMILIES
from graphs.io.graph_files import read_graphs
from graphs.system.errors import InputError
from tests.agent.placement_cases import training_graph


def test_the_graphs_that_are_kept_were_never_seen_and_no_training_can_name_their_families() -> None:
    card, graphs = read_policy("pretrained").card, read_graphs(KEPT)
    for graph in graphs:
        assert graph.n_ops > (3_000 if graph.family in LARGE else 100)
        assert card.how_seen(graph) == "no"
        assert {"forward", "backward", "optimizer"} <= set(graph.phases)
    assert list(dict.fromkeys(graph.family for graph in graphs)) == [*NEW, *LARGE]
    assert not {*NEW, *LARGE} & set(FAMILIES)


def test_sealed_draws_are_none_of_those_that_anything_was_tuned_on() -> None:
    assert max(FAMILIES.values()) <= FIRST_SEED
    drawn = partial(sealed_graphs, how_seen=read_policy("pretrained").card.how_seen)
    assert [graph.name for graph in drawn(("vit", "unet"))] == ["vit-1002", "unet-1000"]
    (unseen,) = drawn(("vit",), first_seed=1000)
    assert unseen.name == "vit-1002", "vit-1000 and vit-1001 have the structure of a seen one"
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
