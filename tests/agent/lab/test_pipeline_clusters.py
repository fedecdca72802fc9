"""Pipelines by cluster, and the seconds of large ones, on a small graph."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from agent.lab import pipeline_clusters, pipeline_scale
from agent.lab.command import main
from agent.lab.pipeline_clusters import (
    CLUSTERS,
    DATA,
    LAYERS,
    ONE,
    PLAIN,
    REPLICATE,
    ClusterRow,
    cluster_tables,
)
from agent.lab.pipeline_scale import PARTS, ScaleRow, scale_tables
from agent.lab.rows import write_rows
from envs.cluster.presets import INFINIBAND_BYTES_PER_S
from envs.pipeline.stages import check_cluster
from tests.envs.pipeline.random_pipelines import random_training_graph


def test_a_run_resumes_and_prints_its_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = random_training_graph(np.random.default_rng(0), 8)
    monkeypatch.setattr(pipeline_clusters, "sealed_graphs", lambda *_, **named: [graph])
    monkeypatch.setattr(pipeline_clusters, "COUNTS", (4,))
    monkeypatch.setattr(pipeline_clusters, "CLUSTERS", {"4 V100": CLUSTERS["4 V100"]})
    words = ["pipeline_clusters", "--seconds", "0.01", "--out", str(tmp_path)]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert printed.count("\n| all | ") == 2
    monkeypatch.setattr(pipeline_clusters, "_rows", lambda *case: iter(()))  # cannot be written
    assert main(words) == 0
    assert capsys.readouterr().out == printed


@pytest.mark.parametrize("name", CLUSTERS)
def test_clusters_can_run_pipelines(name: str) -> None:
    check_cluster(CLUSTERS[name]())


def test_only_links_between_nodes_are_slow() -> None:
    links = CLUSTERS["2 nodes of 4 A100"]().bytes_per_s
    assert (links[:4, 4:] == INFINIBAND_BYTES_PER_S).all()
    assert links[4, 5] > INFINIBAND_BYTES_PER_S


def test_a_plan_that_does_not_fit_is_counted_and_not_compared(tmp_path: Path) -> None:
    row = partial(ClusterRow, stages=1, devices=1, recomputed=0, seconds=1.0)
    speeds = {LAYERS: 2.0, "pipedream": 5.0, DATA: 9.0, ONE: 1.0}
    rows = [
        row(
            f"g{misfit:d}", "unet", "4 V100", 4, name, plain, speeds.get(name, 4.0), not misfit or name == ONE
        )
        for misfit in (False, True)
        for plain, names in ((True, (*PLAIN, DATA)), (False, REPLICATE))
        for name in names
    ]
    write_rows(tmp_path / "rows.csv", rows)
    ratios, counts, _ = (
        [line.split(" | ") for line in table.splitlines()] for table in cluster_tables(tmp_path / "rows.csv")
    )
    assert ratios[-1][1:4] == ["2.000 (2.000 to 2.000)", "0.800 (0.800 to 0.800)", "0.444 (0.444 to 0.444)"]
    found = dict(zip(counts[0], counts[-1], strict=True))
    assert found["cases"] == "2"
    assert [found[f"{name} does not fit"] for name in ("refine", "equal-layers", ONE)] == ["1", "1", "0"]
    assert [found[f"{name} faster than refine"] for name in (DATA, ONE)] == ["1", "1"]


def test_seconds_of_more_devices_lie_on_a_line(tmp_path: Path) -> None:
    parts = dict.fromkeys(PARTS, 0.0)
    rows = [
        ScaleRow(
            "g",
            9,
            n,
            8,
            **parts | {"plan_s": 1 + n, "memory_s": 3.0},
            search_s=5.0,
            plans=10,
            gain=2.0,
            fits=True,
        )
        for n in (16, 32, 64)
    ]
    write_rows(tmp_path / "rows.csv", rows)
    (table,) = scale_tables(tmp_path / "rows.csv")
    *_, last = table.splitlines()
    assert last.split(" | ")[1:9] == [
        "9",
        "8",
        "0.000",
        "1001.000",
        "0.000",
        "3.000",
        "10040.000",
        "10040.000",
    ]


def test_a_row_of_the_scale_has_the_seconds_of_its_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_scale, "MICROBATCHES", 16)
    row = pipeline_scale.scale_row(random_training_graph(np.random.default_rng(0), 8), 4, 0.02)
    assert row.fits
    assert row.plans > 1
    assert min(getattr(row, part) for part in PARTS) > 0
