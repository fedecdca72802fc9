"""The benchmark: its rows, its tables and its placements."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path

import pytest

from agent.instances.instance import find_instances
from agent.lab.__main__ import main
from agent.lab.bench import BenchmarkRow
from agent.lab.pivot import Row, read_table, write_rows
from agent.lab.questions import EXPERIMENTS
from envs.placements.files import read_placement

NAME, PIPELINE = "doppler:chain_mm", "pipedream:alexnet"


def row(placer: str, step_s: float, instance: str = "doppler:a", best_s: float = 1.0) -> Row:
    return asdict(BenchmarkRow(instance, placer, 1.0, step_s, 10, 0.5, 1.0, best_s))


def test_tables_say_who_is_ahead_and_what_is_closed() -> None:
    rows = [
        *(row("refine", 1.0), row("heft", 1.5), row("metis", math.inf)),
        *(row("refine", 3.0, "doppler:b", 2.0), row("heft", 2.0, "doppler:b", 2.0)),
        *(row("refine", 2.0, "piper:c", 2.0), row("pipedream", 2.0, "piper:c", 2.0)),
        *(row("refine", 2.0, "piper:d", 2.0), row("pipedream", 2.0, "piper:e", 2.0)),
    ]
    placers, sources = (table.markdown(rows).splitlines() for table in EXPERIMENTS["benchmark"].tables)
    assert "| refine | 1.225 | 1.000 | 1.861 | 0 | 0.50 |" in placers
    assert "| metis |  |  |  | 1 | 0.50 |" in placers
    assert sources[2:] == [
        "| doppler | 2 | 1 | 1.414 | 1 | 0 | 1 | b 1.500 |",
        "| piper | 3 | 0 | 2.000 | 0 | 1 | 0 |  |",
        "| all | 5 | 1 | 1.741 | 1 | 1 | 1 |  |",
    ]


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
    write_rows(kept, [row("heft", 7.0, NAME)])
    assert rows_of("heft", "pipedream")["heft"]["step_s"] == 7.0
    assert {row["instance"] for row in rows_of("single", "heft").values() if row["seconds"]} == {
        NAME,
        PIPELINE,
    }
    assert {row["instance"] for row in rows_of("memory-fill").values()} == {NAME}, "it places no pipelines"
