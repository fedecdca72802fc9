"""Steps that others measured: which runs count, where stages are cut, and the statistics of the page."""

from __future__ import annotations

from typing import Any

import pytest

from agent.lab import published_models
from agent.lab.measured_clusters import LAYER, MEASURED, PublishedRuns, _of_sweep, is_broken, simulated
from agent.lab.pivot import ExperimentError, error, read_table
from agent.lab.published_models import MODELS, Sizes, nanotron, rank_of_layers
from envs.cluster.presets import get_cluster
from envs.pipeline.pipeline import Pipeline


def test_the_rule_leaves_out_seventeen_runs_of_the_sweep() -> None:
    runs = [
        row for row in read_table(MEASURED / "measured_clusters_nanotron.csv") if row["tokens_s"] is not None
    ]
    assert (sum(is_broken(row, runs) for row in runs), len(runs)) == (17, 113)


@pytest.mark.parametrize(
    ("model", "n_stages", "layers"),
    [
        ("1B", 1, [16]),
        ("1B", 2, [10, 6]),
        ("1B", 4, [5, 5, 5, 1]),
        ("1B", 8, [3, 2, 3, 2, 3, 2, 1]),
        ("8B", 4, [9, 9, 8, 6]),
        ("8B", 8, [5, 4, 4, 5, 4, 4, 4, 2]),
    ],
)
def test_a_stage_ends_with_the_layer_that_meets_its_share(
    model: str, n_stages: int, layers: list[int]
) -> None:
    ranks = rank_of_layers(MODELS[model], n_stages)
    assert [ranks.count(rank) for rank in range(ranks[-1] + 1)] == layers
    assert ranks == sorted(ranks)


def test_layers_of_a_captured_model_are_on_their_ranks_and_replicas_beside_each_other() -> None:
    graph = nanotron(Sizes(64, 3, 128, tied=False), 1)
    time, stages = simulated(
        graph, get_cluster("8xh100-sxm5"), Pipeline("1f1b", 8, replicas=4), rank_of_layers=[0, 0, 1]
    )
    assert stages.groups == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert time.total_s > 0
    for name, device, phase in zip(graph.op_names, stages.device_of, graph.phases, strict=True):
        if phase == "forward" and (layer := LAYER.search(name)):
            assert device == (4 if layer[1] == "2" else 0), name
        elif phase == "forward" and name.startswith("head/"):
            assert device == 4


def test_an_unknown_model_is_one_line(tmp_path: Any) -> None:
    with pytest.raises(
        ExperimentError, match="no model is named 'nix'; use some of 1B, 8B, bert, gpt, gpt-j-6b"
    ):
        PublishedRuns(("nix",)).rows(tmp_path)


def test_predictions_stay_within_the_bar() -> None:
    """Of the rows of the page; one is predicted anew, as the page says it."""
    rows = [row for row in read_table(MEASURED / "measured_clusters.csv") if row["use"] == "used"]
    rows = [row for row in rows if row["source"] == "nanotron" and row["nodes"] <= 8]
    for of_one, bar in ((True, 0.05), (False, 0.1)):
        some = [row for row in rows if (row["nodes"] == 1) == of_one]
        assert len(some) in (15, 53)
        assert float(error("predicted_s", "measured_s", 0.5)(some).rstrip("%")) <= 100 * bar
        assert float(error("predicted_gib", "measured_gib", 0.5)(some).rstrip("%")) <= 8
    sweep = read_table(MEASURED / "measured_clusters_nanotron.csv")
    wanted = {"model": "1B", "nodes": 1, "dp": 4, "pp": 2, "zero": 1, "mbs": 1}
    (run,) = (row for row in sweep if wanted.items() <= row.items())
    (known,) = (row for row in rows if wanted.items() <= row.items())
    again = _of_sweep(published_models, run, sweep)
    assert (again.predicted_s, again.predicted_gib) == pytest.approx(
        (known["predicted_s"], known["predicted_gib"]), rel=1e-6
    )
