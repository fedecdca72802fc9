"""Evaluations of pipelines: rows, placements with stages, handed over files, the report, and bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent.commands.evaluate import main
from agent.pipeline.search import pipeline_bound_s
from agent.placers.base import names_of
from envs.cluster.presets import get_cluster
from envs.objective import PIPELINE
from envs.pipeline.objective import PipelineObjective
from envs.pipeline.pipeline import Pipeline
from envs.problem import Problem
from graphs.dataset import load_family
from graphs.io.graph_files import write_graphs
from tests.agent.evaluation_cases import rows_of

WORDS = ["--cluster", "4xv100", "--seeds", "1", "--budget", "40", "--trace"]


@pytest.fixture(scope="module")
def graph_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("graphs") / "gpt.json"
    write_graphs(path, [load_family("gpt")[0]])
    return path


def evaluated(graph_file: Path, out: Path, *words: str) -> list[dict[str, str]]:
    assert main(["--graphs", str(graph_file), *WORDS, "--out", str(out), *words]) == 0
    return rows_of(out)


def test_rows_say_what_a_pipeline_brings(
    graph_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = evaluated(graph_file, tmp_path, "--pipeline", "interleaved-1f1b:2", "--microbatches", "8")
    assert {*names_of(PIPELINE), "data-parallel"} == {row["placer"] for row in rows}
    pipelined = PipelineObjective(Problem(load_family("gpt")[0], get_cluster("4xv100")), Pipeline("1f1b", 8))
    for row in rows:
        assert (row["pipeline"], row["microbatches"]) == ("interleaved-1f1b:2", "8")
        assert float(row["throughput_per_s"]) == pytest.approx(8 / float(row["step_time_s"]))
        if row["placer"] != "data-parallel":
            assert float(row["step_time_s"]) >= float(row["lower_bound_s"])
            assert 0 < float(row["bubble_share"]) < 1
            assert float(row["lower_bound_s"]) == pytest.approx(pipeline_bound_s(pipelined))
    printed = capsys.readouterr().out
    assert "microbatches a second" in printed
    stages = [line for line in printed.splitlines() if line.startswith("stage ")]
    assert len(stages) == 8
    assert max(map(len, stages)) <= 80


def test_placements_keep_their_stages_and_are_scored_again(graph_file: Path, tmp_path: Path) -> None:
    words = ["--pipeline", "interleaved-1f1b:2", "--microbatches", "4"]
    found = evaluated(graph_file, tmp_path / "found", *words, "--placers", "refine")
    folder = tmp_path / "found" / "placements" / "4xv100" / "gpt-00"
    placement = json.loads((folder / "refine.json").read_text())
    assert set(placement["stage_of"].values()) == set(range(8))
    trace = json.loads((folder / "refine.trace.json").read_text())
    assert {"0F0", "7B3", "update"} <= {event["name"] for event in trace["traceEvents"]}
    assert [row["stage"] for row in rows_of(folder, "refine.stages.csv")] == [*"01234567"]
    own = folder / "mine.json"
    own.write_bytes((folder / "refine.json").read_bytes())
    again = evaluated(graph_file, tmp_path / "again", *words, "--placements", str(own))
    assert [row["placer"] for row in again] == ["mine"]
    assert float(again[0]["step_time_s"]) == pytest.approx(float(found[0]["step_time_s"]))


def test_report_draws_the_pipeline_from_memory_and_from_files(graph_file: Path, tmp_path: Path) -> None:
    words = ["--pipeline", "1f1b", "--placers", "equal-layers", "refine"]
    evaluated(graph_file, tmp_path, *words)
    page = (tmp_path / "report.html").read_text()
    evaluated(graph_file, tmp_path, *words)
    assert (tmp_path / "report.html").read_text() == page
    assert "pipeline and memory of gpt-00 on 4xv100 by refine" in page
    assert "% bubble" in page
